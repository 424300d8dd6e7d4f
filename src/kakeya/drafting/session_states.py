"""What a DFlash session can be, what it can be asked, and what it answers: plain values.

Knows nothing of how one follows from the other: that is machine.py.  Spec: session.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from kakeya.config.sessions import SessionLimits
from kakeya.drafting.drafter import BlockAsk, Context, DflashDrafter, LayerBank, RestorePlan
from kakeya.drafting.proposer import Draft
from kakeya.wire.tensor import WireArray

# ---- states


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a turn is recognised by: the prompt's length and the sha256 of its ids."""

    length: int  # tokens
    digest: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """Admitted; nothing restored yet."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The banks were returned; waiting for aux."""

    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Seeded:
    """The context is usable; nothing was drafted in this turn."""

    prompt: Prompt
    context: Context  # the drafter's K/V over positions [0, context_len)
    context_len: int  # tokens


@dataclass(frozen=True, slots=True)
class Drafting:
    """At least one block was drafted in this turn."""

    prompt: Prompt
    context: Context
    context_len: int  # tokens
    drafted_for: DraftBlock
    draft: Draft


class Ending(Enum):
    """Why a session is no more; the values are a metric's labels."""

    CLOSED = "closed"
    IDLE = "idle"
    LIFE = "life"
    RESTORE_FAILED = "restore_failed"
    STOPPED = "stopped"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Closed:
    """Terminal; `detail` is told to whoever asks for the session later."""

    ending: Ending
    detail: str


State = Opened | Restored | Seeded | Drafting | Closed


# ---- requests


class Aux(Protocol):
    """Hidden states on their way in: num_aux arrays of `num_rows` rows.  For the engine's thread.

    Both calls raise Refused(INVALID_ARGUMENT) for what is not what the drafter takes.
    """

    @property
    def num_rows(self) -> int: ...
    @property
    def num_arrays(self) -> int: ...
    def check(self, index: int) -> None: ...
    def rows(self, first: int, last: int) -> Sequence[WireArray]:
        """Rows [first, last) of every array, checked: each [last - first, hidden_size]."""
        ...


@dataclass(frozen=True, slots=True)
class Restore:
    plan: RestorePlan
    model_id: str  # "": whichever the session has


@dataclass(frozen=True, slots=True)
class SeedContext:
    aux: Aux
    first: int  # the first position, 0
    end: int  # behind the last one


@dataclass(frozen=True, slots=True)
class DraftBlock:
    bonus_id: int
    context_len: int  # tokens; must equal the session's
    num_drafts: int  # the bonus is not counted


@dataclass(frozen=True, slots=True)
class ExtendContext:
    aux: Aux
    first: int  # the first position, the session's context_len
    end: int  # behind the last one


@dataclass(frozen=True, slots=True)
class CloseSession:
    pass


Request = Restore | SeedContext | DraftBlock | ExtendContext | CloseSession


# ---- replies and tools


@dataclass(frozen=True, slots=True, eq=False)
class Banks:
    """The answer to Restore; `evicted` are the positions whose K/V the verifier may lack."""

    layers: tuple[LayerBank, ...]
    evicted: range
    prompt_len: int  # tokens


@dataclass(frozen=True, slots=True)
class Tools:
    """What a transition works with.

    work: `await work(fn, *args)` runs one job on the engine's thread; Refused once nobody waits.
    draft: `await draft(ask)` is the draft of one block, perhaps in one pass with others'.
    hold: `hold(num_bytes)` reserves that much for the context; Refused when there is no room.
    """

    drafter: DflashDrafter
    limits: SessionLimits
    work: Callable[..., Awaitable[Any]]
    draft: Callable[[BlockAsk], Awaitable[Draft]]
    hold: Callable[[int], None]
