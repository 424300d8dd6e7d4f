"""The promise on a pair of real nodes: `python -m tests.live.promise --prompts 40 --tokens 200`.

The tiny verifier on one node, its drafter on another.  Held-out prompts are decoded plainly and
with the drafter's blocks over the wire, in each dtype and K/V mode; the ids must be equal.  Beside
it: tokens a round, over all of each answer and over its first 32, and n-gram's.
"""

# ruff: noqa: T201 - a command that prints what it found
from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kakeya.cli.bench_prompts import held_out
from tests.cli.nodes import eventually, fleet_view, running_node
from tests.live.client import Heard, hear
from tests.live.conftest import QUICK, Pair

DTYPES, KV_MODES = ("float32", "bfloat16"), ("full", "window", "restored")
# Less than held-out prompts have, so that modes differ.
SINK, WINDOW, NUM_DRAFTS = 4, 128, 7
FIRST_LEN = 32


@dataclass
class Count:
    """Texts compared and rounds with drafts counted, of one way to draft."""

    num_texts: int = 0
    num_equal: int = 0
    num_rounds: int = 0
    num_alone: int = 0
    num_ids: int = 0
    first_rounds: int = 0
    first_ids: int = 0
    drafters: set[str] = field(default_factory=set)

    def add(self, plain: Heard, heard: Heard) -> None:
        self.num_texts += 1
        self.num_equal += heard.ids == plain.ids
        self.drafters.update(heard.drafters)
        at = 0
        for length, num_drafts in heard.rounds:
            if num_drafts and at < FIRST_LEN:
                self.first_rounds += 1
                self.first_ids += length
            if num_drafts:
                self.num_rounds += 1
                self.num_ids += length
            self.num_alone += not num_drafts
            at += length

    def __str__(self) -> str:
        return (
            f"{self.num_equal} of {self.num_texts} equal; tokens a round "
            f"{self.num_ids / max(self.num_rounds, 1):.2f}, "
            f"first {FIRST_LEN} {self.first_ids / max(self.first_rounds, 1):.2f}; "
            f"rounds {self.num_rounds}, and without drafts {self.num_alone}"
        )


@contextmanager
def tiny_pair(home: Path, dtype: str, *more: str) -> Iterator[Pair]:
    """`attic` verifies (with the flags `more`), `cellar` drafts, and they know each other."""
    window = ("--sink", str(SINK), "--window", str(WINDOW))
    verifying = ("--verifier", "tiny", "--dtype", dtype, *window, *more)
    with (
        running_node(home, *QUICK, *verifying, "--node-id", "attic") as attic,
        running_node(
            home, *QUICK, "--verifier", "none", "--proposer", "tiny", "--node-id", "cellar",
            "--peer", attic.grpc,
        ) as cellar,
    ):  # fmt: skip
        eventually(lambda: fleet_view(attic, home).get("cellar", {}).get("models"))
        eventually(lambda: "tiny" in drafters_of(attic.grpc))
        yield Pair(attic, cellar, home)


def drafters_of(address: str) -> set[str]:
    """Who drafts for a generation there when the number of drafts is not left to the policy."""
    asked = {"text": "x", "raw": True, "max_tokens": 100, "proposer": "tiny", "num_drafts": 7}
    return set(hear(address, **asked).drafters)


def compare(
    pair: Pair, prompts: Sequence[str], *, kv_mode: str, max_tokens: int
) -> dict[str, Count]:
    """The drafter on the other node, and n-gram drafts, each against plain decoding.

    In mode restored the banks are the drafter's, and n-gram alone is refused.
    """
    counts = {name: Count() for name in ("tiny", "ngram")[: 1 if kv_mode == "restored" else 2]}
    for prompt in prompts:
        asked = {"text": prompt, "raw": True, "max_tokens": max_tokens, "kv_mode": kv_mode}
        plain = hear(pair.attic.grpc, plain=True, **asked)
        for name, count in counts.items():
            heard = hear(pair.attic.grpc, num_drafts=NUM_DRAFTS, proposer=name, **asked)
            count.add(plain, heard)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    prompts = held_out(wanted.prompts, seed=wanted.seed)
    is_kept = True
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as home, tiny_pair(Path(home), dtype) as pair:
            for kv_mode in KV_MODES:
                counts = compare(pair, prompts, kv_mode=kv_mode, max_tokens=wanted.tokens)
                for name, count in counts.items():
                    print(f"{dtype:8}  {kv_mode:8}  {name:5}  {count}", flush=True)
                    is_kept &= count.num_equal == count.num_texts
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
