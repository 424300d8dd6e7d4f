"""What a drafter is to the node that serves it (host B)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Draft:
    """A block of drafted ids, with the accounting that travels back to the verifier's host."""

    ids: tuple[int, ...]
    diffusion_steps: int = 0
    forward_passes: int = 0
    peak_activation_bytes: int = 0


# A draft on its way: each `next` is one short job, and the draft is what it returns.
Jobs = Generator[None, None, Draft]


class Proposer(Protocol):
    """Drafts blocks for a committed prefix.  Called on its device's thread only."""

    @property
    def model_id(self) -> str: ...

    def propose(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Draft:
        """Exactly `num_drafts` ids for the positions behind `committed_ids` (not empty)."""
        ...


@runtime_checkable
class JobByJob(Protocol):
    """A proposer whose work on a block, or on a new prefix, is too long for one job.

    What it holds between two jobs is whole: the draft may be given up there (`close`).
    """

    @property
    def model_id(self) -> str: ...

    def jobs(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Jobs:
        """As `Proposer.propose`, cut into jobs.  Begins nothing before the first one."""
        ...


__all__ = ["Draft", "JobByJob", "Jobs", "Proposer"]
