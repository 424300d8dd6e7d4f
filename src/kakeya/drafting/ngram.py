"""Drafts by copying: what followed the last time the text ended like this.

Prompt lookup (Saxena 2023) with an incremental suffix index, and a copy that goes on through its
own output.  Pure; knows token ids only.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.proposer import Draft, Jobs

NGRAM = "ngram"  # reserved as model_id by the contract
MAX_GRAM_LEN = 4
ID_BYTES = 4
# One entry of one gram length at worst: a bytes key (64), its share of the position (8) and of
# the dictionary's slots (up to 72 just after it grew).
ENTRY_BYTES = 144
INDEX_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Match:
    """The longest suffix that occurred before (0 … 4 tokens), and where its copy starts."""

    match_len: int
    copy_from: int


class NgramIndex:
    """Where every gram of 1 … 4 tokens ended last, for one growing sequence of ids.

    A gram is entered when the token behind it is known, so what is found always has something
    to copy.  `num_entered` counts the entries ever made: the work done, for tests and metrics.
    """

    __slots__ = ("_ends", "_raw", "num_entered")

    def __init__(self) -> None:
        self._raw = bytearray()  # the ids as native uint32: compared and sliced at memcpy speed
        self._ends: tuple[dict[bytes, int], ...] = tuple({} for _ in range(MAX_GRAM_LEN))
        self.num_entered = 0

    def __len__(self) -> int:
        return len(self._raw) // ID_BYTES

    @property
    def resident_bytes(self) -> int:
        """An upper bound of what the index keeps, in bytes."""
        entries = sum(len(ends) for ends in self._ends)
        return INDEX_BYTES + len(self._raw) * 2 + entries * ENTRY_BYTES

    def starts(self, raw: bytes) -> bool:
        """Whether `raw` begins with the ids of this index; one memcmp."""
        return raw.startswith(self._raw)

    def extend(self, ids: Sequence[int]) -> None:
        """Append `ids`, each 0 … 2^32-1; O(len(ids))."""
        self.extend_raw(to_raw(ids))

    def extend_raw(self, raw: bytes) -> None:
        """The same for ids as native uint32."""
        first = len(self)
        self._raw += raw
        for end in range(max(first, 1), len(self)):
            self._enter(end)

    def _enter(self, end: int) -> None:
        for gram_len in range(1, min(MAX_GRAM_LEN, end) + 1):
            self._ends[gram_len - 1][self._gram(end, gram_len)] = end
            self.num_entered += 1

    def _gram(self, end: int, gram_len: int) -> bytes:
        return bytes(self._raw[ID_BYTES * (end - gram_len) : ID_BYTES * end])

    def match(self) -> Match:
        """The longest suffix seen before, at its most recent earlier occurrence; 4 lookups."""
        length = len(self)
        for gram_len in range(min(MAX_GRAM_LEN, length), 0, -1):
            end = self._ends[gram_len - 1].get(self._gram(length, gram_len))
            if end is not None:
                return Match(gram_len, end)
        # Nothing to copy: the copy of the last token is as good a guess as any.
        return Match(0, length - 1)

    def draft(self, num_drafts: int) -> tuple[int, ...]:
        """Exactly `num_drafts` ids; a copy that reaches the end goes on through itself.

        The index must not be empty.
        """
        assert len(self)
        start = self.match().copy_from
        period = self._raw[ID_BYTES * start : ID_BYTES * (start + num_drafts)]
        known = array("I", bytes(period))
        return tuple(known[i % len(known)] for i in range(num_drafts))


def to_raw(ids: Sequence[int]) -> bytes:
    """Ids as native uint32; a memcpy when `ids` is an array("I") already."""
    return array("I", ids).tobytes()


class NgramProposer:
    """The n-gram proposer behind a stateless call: it knows a prefix again that has grown.

    Keeps at most `max_indexes` indexes of at most `max_index_bytes` together, least recently used
    out first.  A prefix that was changed or wound back is indexed anew.
    """

    model_id = NGRAM

    def __init__(self, limits: DraftingLimits) -> None:
        self._limits = limits
        # Keyed by a running number; the last one was used last.
        self._indexes: OrderedDict[int, NgramIndex] = OrderedDict()
        self._next_key = 0
        self.num_entered = 0

    @property
    def num_indexes(self) -> int:
        return len(self._indexes)

    @property
    def resident_bytes(self) -> int:
        return sum(index.resident_bytes for index in self._indexes.values())

    def prepare(self, committed_ids: Sequence[int]) -> bool:
        """Index one piece of the prefix; True when nothing is left to do before `propose`."""
        raw = to_raw(committed_ids)
        index = self._grow(raw, self._limits.index_piece_len)
        return len(index) * ID_BYTES == len(raw)

    def jobs(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Jobs:
        """Index the prefix piece by piece, then draft."""
        # Bounded: when others push our half-built index out, `propose` does it in one go.
        for _ in range(len(committed_ids) // self._limits.index_piece_len + 1):
            is_done = self.prepare(committed_ids)
            yield
            if is_done:
                break
        return self.propose(committed_ids, num_drafts=num_drafts, num_steps=num_steps)

    def propose(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Draft:
        """A copy of what followed; `num_steps` is accepted and ignored."""
        raw = to_raw(committed_ids)
        return Draft(self._grow(raw, len(committed_ids)).draft(num_drafts))

    def _grow(self, raw: bytes, max_ids: int) -> NgramIndex:
        key, index = self._known(raw)
        before, done = index.num_entered, len(index) * ID_BYTES
        index.extend_raw(raw[done : done + max_ids * ID_BYTES])
        self.num_entered += index.num_entered - before
        self._indexes.move_to_end(key)
        self._drop_oldest()
        return index

    def _known(self, raw: bytes) -> tuple[int, NgramIndex]:
        """The longest index that `raw` continues, or a new one."""
        fitting = [(len(i), key) for key, i in self._indexes.items() if i.starts(raw)]
        if fitting:
            key = max(fitting)[1]
            return key, self._indexes[key]
        self._next_key += 1
        index = self._indexes[self._next_key] = NgramIndex()
        return self._next_key, index

    def _drop_oldest(self) -> None:
        sizes = {key: index.resident_bytes for key, index in self._indexes.items()}
        total = sum(sizes.values())
        while len(self._indexes) > 1 and (
            len(self._indexes) > self._limits.max_indexes or total > self._limits.max_index_bytes
        ):
            key, _ = self._indexes.popitem(last=False)
            total -= sizes[key]


__all__ = ["MAX_GRAM_LEN", "NGRAM", "Match", "NgramIndex", "NgramProposer", "to_raw"]
