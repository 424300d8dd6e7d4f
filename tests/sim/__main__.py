"""Simulated fleets on a mock clock: `just sim SEED`, or `just sim --seeds N [--first K]`.

A failure prints its seed, what was violated, and the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time

from kakeya import logs
from tests.sim.determinism import simulate
from tests.sim.storm import storm


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="just sim", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="run this one seed")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    asked = parser.parse_args(argv)
    logs.configure("error", "auto")
    if asked.seeds < 1:
        parser.error(f"--seeds is {asked.seeds}, it must be at least 1")
    first, count = (asked.first, asked.seeds) if asked.seed is None else (asked.seed, 1)
    started_s = time.monotonic()
    for done, seed in enumerate(range(first, first + count), 1):
        if not holds(seed):
            return 1
        minutes = max(time.monotonic() - started_s, 1e-9) / 60
        sys.stdout.write(f"\r{done} of {count} seeds, {done / minutes:.0f} a minute")
        sys.stdout.flush()
    sys.stdout.write("\nall held\n")
    return 0


def holds(seed: int) -> bool:
    """Run one seed; says what broke, and how to see it again."""
    try:
        simulate(storm, seed, seed=seed)
    except (AssertionError, ExceptionGroup) as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        sys.stdout.write(f"\nseed {seed} failed: {first!r}\nrepeat it with: just sim {seed}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
