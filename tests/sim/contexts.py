"""What sessions draft from, held against what the verifier's layers really put out (S12).

A wrong context cannot change a text, only slow it down, so no text would ever tell.
"""

from __future__ import annotations

import numpy as np

from tests.sim.model import Array
from tests.sim.violation import Violation


class Contexts:
    """Hears of every context drafted from; each must be the beginning of some text asked for."""

    def __init__(self) -> None:
        self.num_heard = 0
        self._true: list[Array] = []
        # The first context that was none, as (its length, how far the best text agrees).
        self._false: tuple[int, int] | None = None

    def expect(self, rows: Array) -> None:
        """The layers' outputs at all positions of a text."""
        if not any(rows is each for each in self._true):
            self._true.append(rows)

    def hear(self, rows: Array) -> None:
        """Called on the drafting device: what is wrong is kept for `demand_true`."""
        if not rows.any():
            return  # a node that measures its drafter, on nothing
        self.num_heard += 1
        best = max((agreeing(rows, each) for each in self._true), default=0)
        if best < len(rows) and self._false is None:
            self._false = len(rows), best

    def demand_true(self) -> None:
        if self._false is not None:
            length, best = self._false
            raise Violation(
                "S12", f"a context of {length} positions is that of no text from {best} on"
            )


def agreeing(rows: Array, true: Array) -> int:
    """How many rows are the same from the beginning."""
    length = min(len(rows), len(true))
    if np.array_equal(rows[:length], true[:length]):
        return length
    same = (rows[:length] == true[:length]).all(axis=(1, 2))
    return int(np.argmin(same))
