"""What a draft costs by the length of its prefix, and what it is worth, for the models at hand.

    python tests/bench/propose_bench.py [NAME …] [--rounds 9]

Prints, for each proposer (default: tiny-verifier and tiny-dlm), medians of milliseconds of a block
of 7 drafts on a prefix that grew by 3 ids (warm) and on one never seen (cold), over prefixes of
several lengths taken in turns, and the ratio of each warm block to that of the shortest prefix.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time

from kakeya.config.settings import Settings
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.node.draft_models import LoadedProposer, load_proposer

PREFIX_LENS = (64, 256, 1024, 1920)
NUM_DRAFTS, GROWTH = 7, 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["tiny-verifier", "tiny-dlm"])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for name in args.names:
        choice = resolve_by_prefix(name)
        assert choice is not None, name
        for line in _table(load_proposer(Settings(), choice, _quiet), args.rounds):
            sys.stdout.write(line + "\n")
    return 0


def _quiet(words: str, share: float) -> None:
    pass


def _table(loaded: LoadedProposer, num_rounds: int) -> list[str]:
    rng = random.Random(1)
    lengths = [each for each in PREFIX_LENS if each < loaded.card.max_context_len]
    texts = {each: _ids(rng, each) for each in lengths}
    for text in texts.values():
        _ms(loaded, text)
    warm: dict[int, list[float]] = {each: [] for each in lengths}
    cold: dict[int, list[float]] = {each: [] for each in lengths}
    for _ in range(num_rounds):
        for length, text in texts.items():
            text.extend(_ids(rng, GROWTH))
            warm[length].append(_ms(loaded, text))
    for _ in range(3):
        for length in lengths:
            cold[length].append(_ms(loaded, _ids(rng, length)))
    base = statistics.median(warm[lengths[0]])
    lines = [f"{loaded.card.model_id}: prefix, warm ms, ratio, cold ms"]
    for length in lengths:
        ms = statistics.median(warm[length])
        lines.append(
            f"  {length:5d}  {ms:7.2f}  {ms / base:5.2f}  {statistics.median(cold[length]):8.2f}"
        )
    return lines


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, 2048) for _ in range(count)]


def _ms(loaded: LoadedProposer, text: list[int]) -> float:
    steps = loaded.card.num_steps
    started_s = time.perf_counter()
    for _ in loaded.proposer.jobs(text, num_drafts=NUM_DRAFTS, num_steps=steps):
        pass
    return 1000 * (time.perf_counter() - started_s)


if __name__ == "__main__":
    raise SystemExit(main())
