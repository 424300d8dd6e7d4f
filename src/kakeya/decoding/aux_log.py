"""The aux of one generation's committed positions, kept so that drafters can be (re)seeded.

A bounded ring of pieces: the oldest go first, and what is gone has to be computed again.  Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from kakeya.decoding.verify import Aux


class AuxLog:
    """Rows of `layers` for positions [first, end)."""

    def __init__(self, *, max_bytes: int) -> None:
        self.layers: tuple[int, ...] = ()
        self.first = 0
        self.end = 0
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._pieces: deque[Aux] = deque()

    def tap(self, layers: Sequence[int], at: int) -> None:
        """Keep the outputs of `layers` from position `at` on; once."""
        assert not self.layers
        self.layers = tuple(layers)
        self.first = self.end = at

    def begin(self, head: AuxLog) -> None:
        """Keep what `head` keeps, its rows first; once."""
        self.tap(head.layers, 0)
        for piece in head._pieces:
            self.add(piece)

    def add(self, aux: Aux) -> None:
        """Append the rows of the next committed positions: one array for each of `layers`."""
        self._pieces.append(aux)
        self.end += len(aux[0])
        self._num_bytes += _num_bytes(aux)
        while self._num_bytes > self._max_bytes:
            gone = self._pieces.popleft()
            self.first += len(gone[0])
            self._num_bytes -= _num_bytes(gone)

    def head(self, length: int) -> AuxLog | None:
        """The rows of the first `length` positions alone; None where they are not all there.

        A piece ends there.
        """
        if not self.layers or self.first > 0 or self.end < length:
            return None
        head = AuxLog(max_bytes=self._max_bytes)
        head.tap(self.layers, 0)
        for piece in self._pieces:
            if head.end < length:
                head.add(tuple(layer[: length - head.end] for layer in piece))
        return head

    def rows(self, first: int, end: int, layers: Sequence[int]) -> Aux:
        """The rows of positions [first, end), layer by layer.  self.first ≤ first < end."""
        assert self.first <= first < end <= self.end, (self.first, first, end, self.end)
        wanted = [self.layers.index(layer) for layer in layers]
        parts: list[Aux] = []
        # Mostly the last pieces are asked for.
        at = self.end
        for piece in reversed(self._pieces):
            at -= len(piece[0])
            if at >= end:
                continue
            low, high = max(first - at, 0), min(end - at, len(piece[0]))
            parts.append(tuple(piece[i][low:high] for i in wanted))
            if at <= first:
                break
        if len(parts) == 1:
            return parts[0]
        parts.reverse()
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


def _num_bytes(aux: Aux) -> int:
    return sum(layer.nbytes for layer in aux)


__all__ = ["AuxLog"]
