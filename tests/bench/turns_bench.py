"""A chat's later turns with the prompt's K/V kept and without: time to the first ids, and ratios.

    python tests/bench/turns_bench.py [--verifier smollm2] [--rounds 3] [--turns 3] [--json]

One process, taking turns; ids are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kakeya.compute.device import ThreadDevice
from kakeya.config.settings import Settings
from kakeya.decoding import Engine, decode, engine_of
from kakeya.node.served import load_served
from kakeya.verifying.tokenizer import Tokenizer

OPENING = (
    "Tell me how a harbour works, from the pilot boat to the crane that lifts the last box. " * 12
)
FOLLOWING = "And who decides which ship comes first when two arrive with the same tide? "
ANSWER_LEN = 24


@dataclass(frozen=True, slots=True)
class Turn:
    first_ids_s: float
    prompt_len: int
    cached_len: int
    ids: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifier", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rounds = trio.run(measured, args)
    rows = [_row(turn, rounds) for turn in range(args.turns)]
    assert all(kept[i].ids == read[i].ids for kept, read in rounds for i in range(args.turns))
    for row in rows:
        print(json.dumps(row) if args.json else row)  # noqa: T201


async def measured(args: argparse.Namespace) -> list[tuple[list[Turn], list[Turn]]]:
    """Per round, a chat with kept K/V and one without, in changing order."""
    device = ThreadDevice(name="verifying", max_waiting=8)
    rounds = []
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        settings = Settings(verifier=args.verifier)
        served = await device.run(load_served, settings, lambda what, share: None)
        for number in range(args.rounds):
            found = {}
            for kept_prefixes in (4, 0) if number % 2 else (0, 4):
                engine = engine_of(served.verifier, device, kept_prefixes=kept_prefixes)
                found[kept_prefixes] = await chat(engine, served.tokenizer, args.turns)
            rounds.append((found[4], found[0]))
        nursery.cancel_scope.cancel()
    return rounds


async def chat(engine: Engine, tokenizer: Tokenizer, num_turns: int) -> list[Turn]:
    messages, turns = [{"role": "user", "content": OPENING}], []
    for _ in range(num_turns):
        prompt = tokenizer.encode(tokenizer.render_chat(messages, wall=lambda: 1e9))
        turns.append(await turn_of(engine, prompt))
        answer = tokenizer.stream().push(turns[-1].ids)
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": FOLLOWING})
    return turns


async def turn_of(engine: Engine, prompt: Sequence[int]) -> Turn:
    started_s, first_s, ids, cached_len = trio.current_time(), 0.0, [], 0
    async for block in decode(engine, prompt, max_tokens=ANSWER_LEN):
        first_s = first_s or trio.current_time() - started_s
        ids.extend(block.ids)
        cached_len = block.tally.cached_len if block.tally else 0
    return Turn(first_s, len(prompt), cached_len, tuple(ids))


def _row(number: int, rounds: Sequence[tuple[list[Turn], list[Turn]]]) -> dict[str, float]:
    kept, read = [k[number] for k, _ in rounds], [r[number] for _, r in rounds]
    ratios = [k.first_ids_s / r.first_ids_s for k, r in zip(kept, read, strict=True)]
    return {
        "turn": number + 1,
        "prompt_len": kept[0].prompt_len,
        "cached_tokens": kept[0].cached_len,
        "kept_first_ids_s": round(statistics.median(k.first_ids_s for k in kept), 4),
        "read_first_ids_s": round(statistics.median(r.first_ids_s for r in read), 4),
        "ratio": round(statistics.median(ratios), 3),
    }


if __name__ == "__main__":
    main()
