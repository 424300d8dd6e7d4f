"""What may be held and how often: byte budgets, and rates of frames.

Plain arithmetic; knows nothing of frames or streams.
"""

from __future__ import annotations


class Budget:
    """A number of bytes that may be held at once, within a larger budget or on its own."""

    __slots__ = ("_larger", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int, larger: Budget | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._larger = larger

    def take(self, num_bytes: int) -> bool:
        """Hold that many more bytes, here and in every larger budget; False changes nothing."""
        if self.held_bytes + num_bytes > self.limit_bytes:
            return False
        if self._larger is not None and not self._larger.take(num_bytes):
            return False
        self.held_bytes += num_bytes
        return True

    def give(self, num_bytes: int) -> None:
        """Hold that many bytes less."""
        assert num_bytes <= self.held_bytes
        self.held_bytes -= num_bytes
        if self._larger is not None:
            self._larger.give(num_bytes)


class Rate:
    """Lets `per_s` events a second pass, and bursts of four seconds' worth."""

    __slots__ = ("_left", "_per_s", "_seen_at")

    BURST_S = 4.0

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s * self.BURST_S
        self._seen_at: float | None = None

    def allows(self, now: float) -> bool:
        """Count one event at `now` (s, monotonic)."""
        if self._seen_at is not None:
            gained = (now - self._seen_at) * self._per_s
            self._left = min(self._per_s * self.BURST_S, self._left + gained)
        self._seen_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
