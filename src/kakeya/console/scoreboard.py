"""How speculation does on this node, for people who look: totals, and the latest blocks' rate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kakeya.decoding import Block

# About ten seconds of a small model: long enough for a steady figure, short enough to be news.
NUM_LATEST = 200


@dataclass(slots=True)
class Scoreboard:
    """num_drafts, num_accepted: ids.  offered_at[i], accepted_at[i]: blocks, by position."""

    num_drafted_blocks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_ids: int = 0
    offered_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    # (ids, seconds) of the latest blocks.
    _latest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NUM_LATEST))

    def add(self, block: Block) -> None:
        elapsed_s = block.draft_s + block.verify_s + block.overhead_s
        self._latest.append((len(block.ids), elapsed_s))
        self.num_ids += len(block.ids)
        if not block.num_drafts:
            return
        missing = block.num_drafts - len(self.offered_at)
        self.offered_at.extend([0] * missing)
        self.accepted_at.extend([0] * missing)
        self.num_drafted_blocks += 1
        self.num_drafts += block.num_drafts
        self.num_accepted += block.num_accepted
        for i in range(block.num_drafts):
            self.offered_at[i] += 1
            self.accepted_at[i] += i < block.num_accepted

    @property
    def tokens_per_second(self) -> float:
        """Of one generation, over the latest blocks; 0 before the first."""
        elapsed_s = sum(seconds for _, seconds in self._latest)
        return sum(count for count, _ in self._latest) / elapsed_s if elapsed_s else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafted blocks; 1 where nothing was drafted."""
        return 1 + self.num_accepted / max(1, self.num_drafted_blocks)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Accepted at a position over the blocks that offered it."""
        pairs = zip(self.accepted_at, self.offered_at, strict=True)
        return [accepted / offered for accepted, offered in pairs]


__all__ = ["Scoreboard"]
