"""Ours against transformers on the same weights: one process each, taking turns.

    python tests/bench/verify_bench.py FOLDER [--rounds 9] [--busy] [--json]

Prints medians of milliseconds and of the ratios round by round, for a one-token step (T = 1),
verify blocks of 4 and 8 rows, and a prefill.  --busy keeps one more process computing meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

BLOCK_LENS = (1, 4, 8)
CONTEXT_LEN = 300
PREFILL_LEN = 1500
REPEATS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=["ours", "transformers", "busy"])
    args = parser.parse_args()
    if args.worker == "busy":
        return _burn()
    if args.worker:
        return _work(args)
    found = _compare(args)
    sys.stdout.write((json.dumps(found) if args.json else _table(found)) + "\n")
    return 0


def _compare(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    busy = [_start(args, "busy")] if args.busy else []
    ours, theirs = _start(args, "ours"), _start(args, "transformers")
    found: dict[str, dict[str, float]] = {}
    try:
        for what in (*map(str, BLOCK_LENS), "prefill"):
            rounds = 3 if what == "prefill" else args.rounds
            pairs = [(_ask(ours, what), _ask(theirs, what)) for _ in range(rounds)]
            found[what] = {
                "ours_ms": round(statistics.median(a for a, _ in pairs), 2),
                "transformers_ms": round(statistics.median(b for _, b in pairs), 2),
                "ratio": round(statistics.median(a / b for a, b in pairs), 3),
            }
    finally:
        for process in (ours, theirs, *busy):
            process.kill()
            process.wait()
    return found


def _table(found: dict[str, dict[str, float]]) -> str:
    lines = [f"{'rows':>8} {'ours ms':>9} {'transformers ms':>16} {'ratio':>6}"]
    for what, row in found.items():
        lines.append(
            f"{what:>8} {row['ours_ms']:>9.1f} {row['transformers_ms']:>16.1f} {row['ratio']:>6.2f}"
        )
    return "\n".join(lines)


def _start(args: argparse.Namespace, worker: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, str(args.folder), "--worker", worker]
    command += ["--threads", str(args.threads), "--dtype", args.dtype]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "TRANSFORMERS_VERBOSITY": "error"},
    )


def _ask(worker: subprocess.Popen[str], what: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(what + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def _work(args: argparse.Namespace) -> int:
    """Answer each line of stdin (a number of rows, or `prefill`) with a median in ms."""
    make = _ours if args.worker == "ours" else _transformers
    step, prefill = make(args)
    for line in sys.stdin:
        what = line.strip()
        run = prefill if what == "prefill" else lambda n=what: step(int(n))
        if what != "prefill":
            run()  # the other process had the caches meanwhile
        times = []
        for _ in range(1 if what == "prefill" else REPEATS):
            started = time.perf_counter()
            run()
            times.append((time.perf_counter() - started) * 1e3)
        sys.stdout.write(f"{statistics.median(times)}\n")
        sys.stdout.flush()
    return 0


Run = tuple[Callable[[int], None], Callable[[], None]]


def _ids(count: int, vocab_size: int) -> list[int]:
    return [(7919 * i + 13) % vocab_size for i in range(count)]


def _ours(args: argparse.Namespace) -> Run:
    import torch

    from kakeya.config.verifying import VerifyingLimits
    from kakeya.verifying.load import load_verifier
    from kakeya.verifying.verifier import KvPlan

    torch.set_num_threads(args.threads)
    verifier = load_verifier(
        args.folder,
        dtype=args.dtype,
        limits=VerifyingLimits(),
        model_id="bench",
        progress=lambda share: None,
    )
    ids = _ids(PREFILL_LEN, verifier.geometry.vocab_size)

    def fill(length: int, max_len: int):
        kv = verifier.open(KvPlan("full", 0, 0, max_len))
        for at in range(0, length, verifier.prefill_chunk_len):
            verifier.prefill(kv, ids[at : min(length, at + verifier.prefill_chunk_len)])
        return kv

    kv = fill(CONTEXT_LEN, CONTEXT_LEN + 32)

    def step(rows: int) -> None:
        verifier.forward(kv, ids[:rows])
        verifier.trim(kv, CONTEXT_LEN)

    return step, lambda: fill(PREFILL_LEN, PREFILL_LEN) and None


def _transformers(args: argparse.Namespace) -> Run:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=getattr(torch, args.dtype))
    ids = _ids(PREFILL_LEN, model.config.vocab_size)

    def forward(cache: DynamicCache, chunk: list[int]) -> None:
        with torch.inference_mode():
            logits = model(torch.tensor([chunk]), past_key_values=cache, use_cache=True).logits
            logits[0].argmax(-1).tolist()

    kv = DynamicCache(config=model.config)
    forward(kv, ids[:CONTEXT_LEN])

    def step(rows: int) -> None:
        forward(kv, ids[:rows])
        kv.crop(-rows)

    def prefill() -> None:
        with torch.inference_mode():
            model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)

    return step, prefill


def _burn() -> int:
    """Keep one core busy until killed or orphaned."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(i * i for i in range(100_000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
