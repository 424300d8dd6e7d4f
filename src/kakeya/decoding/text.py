"""Where a text ends: stop strings cut exactly before they begin, in ids as in text.

Ids and text that might still turn out to belong to a stop string are held back together, so
nothing ever has to be taken back.  Pure; how ids become characters is the TextStream's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class TextStream(Protocol):
    """Turns ids into text as they come."""

    def push(self, ids: Sequence[int]) -> str:
        """The whole characters that became certain with `ids`."""
        ...

    def flush(self) -> str:
        """What is left at the end, unfinished characters included."""
        ...


class NoText:
    """A TextStream for callers that want ids only."""

    def push(self, ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Released:
    """What is final.  is_stopped: a stop string followed; nothing comes after this."""

    ids: tuple[int, ...] = ()
    text: str = ""
    is_stopped: bool = False


@dataclass(slots=True)
class Cutter:
    """Holds back what may belong to one of `stops`; push ids one by one with their text.

    Ids whose characters are not whole yet wait for the id that completes them: such a group is
    released only when all its text is, and dropped when the cut falls inside it.
    """

    stops: tuple[str, ...]
    _text: str = ""
    _open: list[int] = field(default_factory=list)
    # (ids, number of characters) of the groups whose text is held, oldest first.
    _groups: deque[tuple[list[int], int]] = field(default_factory=deque)
    # Characters released of the oldest group.
    _released_len: int = 0

    def push(self, token_id: int, text: str) -> Released:
        self._open.append(token_id)
        if not self.stops:
            ids = tuple(self._open)
            self._open = []
            return Released(ids, text)
        if not text:
            return Released()
        return self._settle(text)

    def end(self, text: str) -> Released:
        """The last text, if any; releases all that is held unless it holds a stop string."""
        last = self._settle(text) if self.stops else Released(text=text)
        if last.is_stopped:
            return last
        held_ids = [each for ids, _ in self._groups for each in ids] + self._open
        held_text = self._text
        self._groups.clear()
        self._open, self._text = [], ""
        return Released(last.ids + tuple(held_ids), last.text + held_text)

    def _settle(self, text: str) -> Released:
        self._groups.append((self._open, len(text)))
        self._open = []
        self._text += text
        cut = first_stop(self._text, self.stops)
        if cut is not None:
            return self._release(cut, is_stopped=True)
        return self._release(len(self._text) - held_len(self._text, self.stops), is_stopped=False)

    def _release(self, num_chars: int, *, is_stopped: bool) -> Released:
        text, self._text = self._text[:num_chars], self._text[num_chars:]
        self._released_len += num_chars
        ids: list[int] = []
        while self._groups and self._groups[0][1] <= self._released_len:
            group, group_len = self._groups.popleft()
            self._released_len -= group_len
            ids.extend(group)
        return Released(tuple(ids), text, is_stopped)


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first (then: begins first), or None.

    Completion decides, so the cut does not depend on how the text was cut into tokens.
    """
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def held_len(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the beginning of a stop string."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


__all__ = ["Cutter", "NoText", "Released", "TextStream", "first_stop", "held_len"]
