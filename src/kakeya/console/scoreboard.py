"""How speculation does on this node, for people who look: totals, and the latest blocks' rate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kakeya.decoding.block import Block, DraftCounts, mean_acceptance_length

# About ten seconds of a small model: long enough for a steady figure, short enough to be news.
NUM_LATEST = 200


@dataclass(slots=True)
class Scoreboard:
    """num_ids: handed out."""

    drafts: DraftCounts = field(default_factory=DraftCounts)
    num_ids: int = 0
    # (ids, seconds) of the latest blocks.
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NUM_LATEST))

    def add(self, block: Block) -> None:
        elapsed_s = block.draft_s + block.verify_s + block.overhead_s
        self._latest.append((len(block.ids), elapsed_s))
        self.num_ids += len(block.ids)
        self.drafts.add(block.num_drafts, block.num_accepted)

    @property
    def tokens_per_second(self) -> float:
        """Of one generation, over the latest blocks; 0 before the first."""
        elapsed_s = sum(seconds for _, seconds in self._latest)
        return sum(count for count, _ in self._latest) / elapsed_s if elapsed_s else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        return mean_acceptance_length(self.drafts.num_accepted, self.drafts.num_drafted_blocks)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted at a position over the blocks that offered it."""
        pairs = zip(self.drafts.accepted_at, self.drafts.offered_at, strict=True)
        return [accepted / offered for accepted, offered in pairs]


__all__ = ["Scoreboard"]
