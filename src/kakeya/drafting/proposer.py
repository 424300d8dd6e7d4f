"""What a drafter is to the node that serves it (host B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Draft:
    """A block of drafted ids, with the accounting that travels back to the verifier's host."""

    ids: tuple[int, ...]
    diffusion_steps: int = 0
    forward_passes: int = 0
    peak_activation_bytes: int = 0


class Proposer(Protocol):
    """Drafts blocks for a committed prefix.  Called on its device's thread only."""

    @property
    def model_id(self) -> str: ...

    def propose(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Draft:
        """Exactly `num_drafts` ids for the positions behind `committed_ids` (not empty)."""
        ...
