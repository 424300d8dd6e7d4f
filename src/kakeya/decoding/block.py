"""What a generation hands out block by block, and what it counted on the way.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kakeya.decoding.sampling import Score

FinishReason = Literal["", "stop", "length"]


def mean_acceptance_length(num_accepted: int, num_drafted_blocks: int) -> float:
    """1 + accepted / drafted blocks; 1 where nothing was drafted."""
    return 1 + num_accepted / max(1, num_drafted_blocks)


@dataclass(frozen=True, slots=True)
class Tally:
    """The account of one generation.  Times in seconds.

    num_ids: ids handed out.  offered_at[i], accepted_at[i]: blocks that offered a draft at
    position i, and that had it accepted.  fallbacks: drafts that were asked for and not had, by
    reason.  overhead_s: the rounds' time that was neither waiting for drafts nor verifying.
    cached_len: positions of the prompt whose K/V was kept from an earlier text.
    """

    prompt_len: int = 0
    cached_len: int = 0
    num_ids: int = 0
    num_blocks: int = 0
    num_drafted_blocks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    offered_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    margin_rechecks: int = 0
    nan_rechecks: int = 0
    malformed_drafts: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def decode_s(self) -> float:
        return self.draft_s + self.verify_s + self.overhead_s

    @property
    def mean_acceptance_length(self) -> float:
        return mean_acceptance_length(self.num_accepted, self.num_drafted_blocks)


@dataclass(frozen=True, slots=True)
class Block:
    """One round of the loop.

    ids, text: what became final with it.  Without stop strings that is all it committed; with
    them, what may still be part of one is held back and comes with a later block.
    proposer, drafted_on: who drafted; empty where the verifier went alone.  overhead_s: the
    round's time that was neither draft_s nor verify_s.  may_draft: speculation is on.
    finish_reason, tally: set on the last block only.  scores: one an id, where asked for.
    prompt_scores: on the first block, where asked for: of the prompt's ids but the first.
    """

    ids: tuple[int, ...]
    text: str
    num_drafts: int
    num_accepted: int
    proposer: str
    drafted_on: str
    draft_s: float
    verify_s: float
    overhead_s: float = 0.0
    may_draft: bool = False
    finish_reason: FinishReason = ""
    tally: Tally | None = None
    scores: tuple[Score, ...] = ()
    prompt_scores: tuple[Score, ...] = ()


@dataclass(slots=True)
class DraftCounts:
    """Drafts of many blocks.  offered_at[i], accepted_at[i]: blocks, by position."""

    num_drafted_blocks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    offered_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """One block; one without drafts does not count."""
        if not num_drafts:
            return
        missing = num_drafts - len(self.offered_at)
        self.offered_at.extend([0] * missing)
        self.accepted_at.extend([0] * missing)
        self.num_drafted_blocks += 1
        self.num_drafts += num_drafts
        self.num_accepted += num_accepted
        for i in range(num_drafts):
            self.offered_at[i] += 1
            self.accepted_at[i] += i < num_accepted


@dataclass(slots=True)
class Account:
    """The tally while it grows."""

    prompt_len: int
    cached_len: int = 0
    prefill_s: float = 0.0
    num_ids: int = 0
    num_blocks: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    fallbacks: dict[str, int] = field(default_factory=dict)
    margin_rechecks: int = 0
    nan_rechecks: int = 0
    malformed_drafts: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    round_s: float = 0.0

    def fell_back(self, reason: str) -> None:
        self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1
        self.malformed_drafts += reason == "malformed"

    def tally(self) -> Tally:
        return Tally(
            prompt_len=self.prompt_len,
            cached_len=self.cached_len,
            num_ids=self.num_ids,
            num_blocks=self.num_blocks,
            num_drafted_blocks=self.drafts.num_drafted_blocks,
            num_drafts=self.drafts.num_drafts,
            num_accepted=self.drafts.num_accepted,
            offered_at=tuple(self.drafts.offered_at),
            accepted_at=tuple(self.drafts.accepted_at),
            fallbacks=dict(self.fallbacks),
            margin_rechecks=self.margin_rechecks,
            nan_rechecks=self.nan_rechecks,
            malformed_drafts=self.malformed_drafts,
            prefill_s=self.prefill_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            overhead_s=max(0.0, self.round_s - self.draft_s - self.verify_s),
        )


__all__ = [
    "Account",
    "Block",
    "DraftCounts",
    "FinishReason",
    "Tally",
    "mean_acceptance_length",
]
