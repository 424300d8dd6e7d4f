"""How many generations run at once, and how many may wait.  Spec: N-08."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kakeya.errors import Refused, demand


class QueueFull(Refused):
    """Too many wait already; it helps to ask again a little later."""

    def __init__(self, num_waiting: int, max_waiting: int) -> None:
        why = f"{num_waiting} generations wait, the limit is {max_waiting}"
        super().__init__("RESOURCE_EXHAUSTED", why)


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
        if self._places.value == 0 and self.num_waiting >= self._max_waiting:
            raise QueueFull(self.num_waiting, self._max_waiting)
        async with self._places:
            yield
