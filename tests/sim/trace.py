"""What a run did, line by line: a digest of all of it, and its end for people to read."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from typing import Any

import trio


class Trace:
    """Every line goes into the digest; the last of them are kept."""

    def __init__(self, *, kept_lines: int = 400) -> None:
        self.lines: deque[str] = deque(maxlen=kept_lines)
        self.counts: Counter[str] = Counter()
        self.num_lines = 0
        self.last_s = 0.0
        # Errors that the product caught and logged, though nobody planned for them.
        self.mistakes: list[str] = []
        self._digest = hashlib.sha256()

    def note(self, what: str, *details: Any) -> None:
        """One event, with the time it happened."""
        line = self._line(what, details)
        self.lines.append(line)
        self.counts[what] += 1

    def count(self, what: str, *details: Any) -> None:
        """One event that nobody needs to read: digested, not kept."""
        self._line(what, details)

    def _line(self, what: str, details: tuple[Any, ...]) -> str:
        self.last_s = trio.current_time()
        line = f"{self.last_s:.6f} {what} {' '.join(map(str, details))}"
        self._digest.update(line.encode() + b"\n")
        self.num_lines += 1
        return line

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
