"""Drafts a second of sessions that draft at once: in one pass, and one by one.

    python tests/bench/together_bench.py [--proposer tiny] [--verifier tiny] [--sessions 8] [--json]

One process, one thread of tensor work, taking turns; contexts of different lengths.  Every session
asks for its next draft when it has the last one, as a verifier does that spends no time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np
import trio

from kakeya.compute.device import ThreadDevice
from kakeya.config.sessions import SessionLimits
from kakeya.config.settings import Settings
from kakeya.drafting.drafter import BlockAsk
from kakeya.drafting.together import Together
from kakeya.node.drafters import load_drafter_named
from kakeya.wire.tensor import WireArray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--proposer", default="tiny")
    parser.add_argument("--verifier", default="tiny")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--drafts", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    row = trio.run(measured, args)
    print(json.dumps(row) if args.json else row)  # noqa: T201


async def measured(args: argparse.Namespace) -> dict[str, Any]:
    device = ThreadDevice(name="drafting", max_waiting=256)
    rates: dict[int, list[float]] = {1: [], args.sessions: []}
    sizes = []
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        settings = Settings(verifier=args.verifier, dtype=args.dtype)
        loaded = await device.run(_loaded, settings, args)
        contexts = [await device.run(_context, loaded, 32 * (1 + i)) for i in range(args.sessions)]
        for number in range(args.rounds):
            for most in sorted(rates, reverse=bool(number % 2)):
                together = Together(device, SessionLimits(max_together=most))
                started_s = trio.current_time()
                with trio.move_on_after(args.seconds):
                    async with trio.open_nursery() as sessions:
                        for index, (context, length) in enumerate(contexts):
                            ask = BlockAsk(context, length, 7 + index, args.drafts)
                            sessions.start_soon(_draft_on, together, loaded, ask)
                elapsed_s = trio.current_time() - started_s
                rates[most].append(together.num_drafts / elapsed_s)
                if most > 1:
                    sizes.append(together.num_drafts / together.num_passes)
        nursery.cancel_scope.cancel()
    ratios = [b / a for a, b in zip(*rates.values(), strict=True)]
    return {
        "proposer": args.proposer,
        "sessions": args.sessions,
        "num_drafts": args.drafts,
        "alone_per_s": round(statistics.median(rates[1]), 1),
        "together_per_s": round(statistics.median(rates[args.sessions]), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(each, 2) for each in ratios],
        "drafts_a_pass": round(statistics.median(sizes), 2),
    }


async def _draft_on(together: Together, drafter: Any, ask: BlockAsk) -> None:
    while True:
        await together.draft(drafter, ask)


def _loaded(settings: Settings, args: argparse.Namespace) -> Any:
    named = load_drafter_named(
        settings, args.proposer, lambda what, share: None, backend=args.backend
    )
    return named.drafter


def _context(drafter: Any, length: int) -> tuple[Any, int]:
    shape, rng, context = drafter.shape, np.random.default_rng(length), None
    for at in range(0, length, 32):
        rows = rng.normal(size=(shape.num_aux, 32, shape.hidden_size)).astype(np.float32)
        context = drafter.extend(context, at, [WireArray("float32", each) for each in rows])
    return context, length


if __name__ == "__main__":
    main()
