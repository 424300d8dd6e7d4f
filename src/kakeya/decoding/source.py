"""Where drafts come from, as the loop sees it: this host's n-gram index, or a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kakeya.drafting.ngram import NGRAM, NgramIndex


@dataclass(frozen=True, slots=True)
class DflashFit:
    """A DFlash drafter that fits the verifier, and what it has to be given.

    aux_layers: verifier layers whose outputs it takes, in its order.  max_context_len: positions
    of a context together with the block behind it.  max_num_drafts: of one block.  restores: it
    has an f_θ, and gives banks.
    """

    aux_layers: tuple[int, ...]
    max_context_len: int
    max_num_drafts: int
    restores: bool = False


@dataclass(frozen=True, slots=True)
class PrefixFit:
    """A model that drafts by prefix and fits the verifier, and how to ask it.

    max_context_len: positions of a prefix together with the block behind it.  num_steps:
    denoising steps that suit it.
    """

    max_context_len: int
    max_num_drafts: int
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A peer (or this node itself) that may be asked for drafts, and the model it would use.

    dflash: it drafts in sessions; None: by prefix.  prefix: a model that drafts by prefix; None for
    n-gram.  heard_unix: when its owner last announced it; news means that it may be back.
    """

    node_id: str
    address: str
    model_id: str
    dflash: DflashFit | None = field(default=None, compare=False)
    prefix: PrefixFit | None = field(default=None, compare=False)
    heard_unix: float = field(default=0.0, compare=False)


# The peers in the order they should be asked, as placement sees them now; cheap.
Places = Callable[[], Sequence[Place]]


class DraftFailedError(Exception):
    """No usable draft came.  `reason` is one of a few words, for counting."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(reason, why)
        self.reason = reason
        self.why = why


class BlockSource(Protocol):
    """Someone who drafts for a committed prefix, some time or never."""

    @property
    def place(self) -> Place: ...

    async def draft(self, committed_ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        """Drafted ids, not checked.  Raises DraftFailedError; the caller limits the wait."""
        ...


class LocalNgram:
    """The n-gram proposer of this host for one generation; drafts in microseconds, never waits."""

    def __init__(self, node_id: str) -> None:
        self.place = Place(node_id, "", NGRAM)
        self._index = NgramIndex()

    def commit(self, ids: Sequence[int]) -> None:
        self._index.extend(ids)

    @property
    def match_len(self) -> int:
        """How many tokens of the committed end were seen before (0 … 4)."""
        return self._index.match().match_len

    def draft(self, num_drafts: int) -> tuple[int, ...]:
        return self._index.draft(num_drafts)


def is_usable(ids: Sequence[int], *, num_drafts: int, vocab_size: int) -> bool:
    """Whether a draft has exactly the asked number of ids, all known to the verifier.  D-03."""
    return len(ids) == num_drafts and all(0 <= each < vocab_size for each in ids)


__all__ = [
    "BlockSource",
    "DflashFit",
    "DraftFailedError",
    "LocalNgram",
    "Place",
    "Places",
    "PrefixFit",
    "is_usable",
]
