"""The K/V of prefixes that go on growing, kept between calls: a call reads only what is new.

A few prefixes, bounded in number and bytes, least recently used out first.  Lives on the model's
thread; knows token ids and lengths, no proposer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.draft_model import DraftKv, DraftModel
from kakeya.errors import Refused


@dataclass(slots=True, eq=False)
class KeptPrefix:
    """One prefix.  ids: those whose K/V is written.  committed_len: of them, the caller's own.

    is_held: a call is at work on it, so that no other call may touch it.
    """

    kv: DraftKv
    max_len: int
    ids: array[int]
    committed_len: int = 0
    is_held: bool = False


class PrefixCache:
    """Slots of one model.  num_rows counts the rows ever forwarded: for tests and figures."""

    def __init__(self, model: DraftModel, limits: DraftingLimits) -> None:
        self.model = model
        self._limits = limits
        self._kept: list[KeptPrefix] = []  # the last one was used last
        self.num_rows = 0
        self.num_passes = 0

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        return sum(self.model.kv_bytes(kept.max_len) for kept in self._kept)

    def hold(self, ids: array[int], num_ahead: int) -> KeptPrefix:
        """The prefix that holds as many of `ids` as any, but not the last one; the caller's alone.

        It has room for `num_ahead` positions more.  Raises Refused(RESOURCE_EXHAUSTED) where
        every one is held, or the K/V would pass the limit.
        """
        needed = len(ids) + num_ahead
        found = max(
            (s for s in self._kept if not s.is_held and s.max_len >= needed),
            key=lambda kept: self._usable(kept, ids),
            default=None,
        )
        usable = 0 if found is None else self._usable(found, ids)
        # A text that only begins alike is likely another one, which will come back.
        is_own = found is not None and 2 * usable >= found.committed_len
        if found is None or not usable or not (is_own or self._is_full(needed)):
            found, usable = self._opened(ids, needed), 0
        self._kept.remove(found)
        self._kept.append(found)
        if usable < len(found.ids):
            self.model.trim(found.kv, usable)
            del found.ids[usable:]
        found.committed_len = len(ids) - 1
        found.is_held = True
        return found

    def release(self, kept: KeptPrefix) -> None:
        """The call is over, or was given up: the prefix may be taken by others.  Any thread."""
        kept.is_held = False

    def read(self, kept: KeptPrefix, ids: array[int]) -> bool:
        """Read one piece of ids[:-1]; True when nothing is left of it."""
        done = len(kept.ids)
        piece = ids[done : min(done + self.model.piece_len, len(ids) - 1)]
        if piece:
            self.model.read(kept.kv, piece)
            self._wrote(kept, piece)
        return len(kept.ids) >= len(ids) - 1

    def next_id(self, kept: KeptPrefix, ids: Sequence[int]) -> int:
        """Append `ids` and say what follows them."""
        found = self.model.next_id(kept.kv, ids)
        self._wrote(kept, ids)
        return found

    def _wrote(self, kept: KeptPrefix, ids: Sequence[int]) -> None:
        kept.ids.extend(ids)
        self.num_rows += len(ids)
        self.num_passes += 1

    def _usable(self, kept: KeptPrefix, ids: array[int]) -> int:
        """How many of ids[:-1] the prefix holds and can be trimmed to; 0 where it cannot."""
        length = min(num_alike(kept.ids, ids), len(ids) - 1)
        return length if length >= kept.kv.forgettable_from else 0

    def _is_full(self, needed: int) -> bool:
        return len(self._kept) >= self._limits.max_caches or not self._fits(needed)

    def _fits(self, needed: int) -> bool:
        wanted = self.model.kv_bytes(self._room(needed))
        return self.num_bytes + wanted <= self._limits.max_cache_bytes

    def _room(self, needed: int) -> int:
        """Positions to open for: doubled, so that a growing text is read anew a few times only."""
        room = self._limits.min_cache_len
        while room < needed:
            room *= 2
        return min(room, self.model.max_context_len)

    def _opened(self, ids: array[int], needed: int) -> KeptPrefix:
        outgrown = [s for s in self._kept if not s.is_held and self._is_outgrown(s, ids, needed)]
        for kept in outgrown:
            self._kept.remove(kept)
        while self._is_full(needed):
            oldest = next((kept for kept in self._kept if not kept.is_held), None)
            if oldest is None:
                raise self._refused(needed)
            self._kept.remove(oldest)
        kept = KeptPrefix(self.model.open(self._room(needed)), self._room(needed), array("I"))
        self._kept.append(kept)
        return kept

    def _is_outgrown(self, kept: KeptPrefix, ids: array[int], needed: int) -> bool:
        """Whether the prefix is the start of this very text, and is too short for it."""
        return kept.max_len < needed and num_alike(kept.ids, ids) >= kept.committed_len > 0

    def _refused(self, needed: int) -> Refused:
        limits = self._limits
        if len(self._kept) >= limits.max_caches:
            why = f"{len(self._kept)} prefixes are drafted for, the limit is {limits.max_caches}"
        else:
            wanted = self.model.kv_bytes(self._room(needed))
            why = (
                f"the K/V takes {wanted} bytes, {self.num_bytes} are held, "
                f"the limit is {limits.max_cache_bytes}"
            )
        return Refused("RESOURCE_EXHAUSTED", why)


def num_alike(a: array[int], b: array[int]) -> int:
    """Length of the longest common prefix of two rows of ids; compared at memory's speed."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = np.frombuffer(a, np.uint32, n) != np.frombuffer(b, np.uint32, n)
    first = int(differs.argmax())
    return first if differs[first] else n


__all__ = ["KeptPrefix", "PrefixCache", "num_alike"]
