"""One seed, one run: what Trio leaves to chance, drawn from a seed instead.

Trio shuffles the tasks that are ready with a generator of its own, and the order they are
shuffled from is not fixed either unless it is told to be.  Both are private to it, so they are
touched here only, and `test_determinism.py` fails when a new version moves them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
import trio.testing
from trio._core import _run

from tests.sim.outside import closed


@contextmanager
def seeded_schedule(seed: int | str) -> Iterator[None]:
    """Draw the order of ready tasks from `seed` inside the block; may be entered within a run.

    The world is closed to the product meanwhile.
    """
    was_allowed, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(f"{seed}/schedule")
    try:
        with closed():
            yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = was_allowed
        _run._r.setstate(state)


def simulate(act: Callable[..., Awaitable[Any]], *args: Any, seed: int | str) -> Any:
    """What `act(*args)` returns on a mock clock that jumps, with tasks ordered by `seed`."""
    with seeded_schedule(seed):
        return trio.run(act, *args, clock=trio.testing.MockClock(autojump_threshold=0))
