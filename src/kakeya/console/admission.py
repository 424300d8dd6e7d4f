"""How many generations run at once, and how many may wait.  Spec: N-08."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kakeya.errors import demand


class Admission:
    """A bounded queue in front of a bounded number of places."""

    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._places = trio.Semaphore(max_running)
        self._max_waiting = max_waiting
        self._max_running = max_running
        self._is_open = True

    @property
    def num_waiting(self) -> int:
        return self._places.statistics().tasks_waiting

    @property
    def num_running(self) -> int:
        return self._max_running - self._places.value

    def close(self) -> None:
        """Admit nobody any more; those who wait or run go on."""
        self._is_open = False

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place.  Refused: UNAVAILABLE once closed, RESOURCE_EXHAUSTED when full."""
        demand(self._is_open, "UNAVAILABLE", "the node is stopping")
        demand(
            self._places.value > 0 or self.num_waiting < self._max_waiting,
            "RESOURCE_EXHAUSTED",
            f"{self.num_waiting} generations wait, the limit is {self._max_waiting}",
        )
        async with self._places:
            yield
