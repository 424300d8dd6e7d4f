"""The DFlash session machine: five states, five requests, one table.

Nothing here knows of tasks, sockets or frameworks.  A transition takes the state it consumes and
the request, does its tensor work through `tools.work`, and returns the next state and the reply.
A transition that raises has changed nothing: the owner keeps the state it had.  Spec: session.md.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args, get_type_hints

from kakeya.config.sessions import SessionLimits
from kakeya.drafting.drafter import BlockAsk, Context, DflashDrafter, LayerBank, RestorePlan
from kakeya.drafting.proposer import Draft
from kakeya.drafting.session_guards import (
    demand_fits,
    demand_kept_word,
    demand_sound_draft,
    demand_sound_restore,
)
from kakeya.drafting.session_states import (
    Aux,
    Banks,
    Closed,
    CloseSession,
    DraftBlock,
    Drafting,
    Ending,
    ExtendContext,
    Opened,
    Prompt,
    Request,
    Restore,
    Restored,
    SeedContext,
    Seeded,
    State,
    Tools,
)
from kakeya.errors import demand

# The state that ExtendContext leaves as it is, but for its context.
Usable = TypeVar("Usable", Seeded, Drafting)

# ---- transitions


async def restore(
    state: Opened | Restored | Drafting, request: Restore, tools: Tools
) -> tuple[Restored, Banks]:
    """A new turn; or, before aux has come, the same prompt answered again."""
    demand_sound_restore(request, tools.drafter)
    prompt = prompt_of(request.plan)
    tools.hold(tools.drafter.context_bytes(prompt.length))
    return Restored(prompt), await _banks(request.plan, None, 0, tools)


async def restore_seeded(
    state: Seeded, request: Restore, tools: Tools
) -> tuple[Seeded | Restored, Banks]:
    """The banks again, now made from the context as well; another prompt begins a new turn."""
    demand_sound_restore(request, tools.drafter)
    prompt = prompt_of(request.plan)
    if prompt == state.prompt:
        return state, await _banks(request.plan, state.context, state.context_len, tools)
    tools.hold(tools.drafter.context_bytes(prompt.length))
    return Restored(prompt), await _banks(request.plan, None, 0, tools)


async def seed(state: Restored, request: SeedContext, tools: Tools) -> tuple[Seeded, int]:
    """The first rows of a context, as many as the client has; ExtendContext brings the rest."""
    num_rows, prompt_len = request.aux.num_rows, state.prompt.length
    demand(
        1 <= num_rows <= prompt_len,
        "INVALID_ARGUMENT",
        f"{num_rows} positions, they must be at least 1 and at most the prompt's {prompt_len}",
    )
    demand(
        request.first == 0 and request.end == num_rows,
        "INVALID_ARGUMENT",
        f"positions are {request.first} … {request.end - 1},"
        f" they must be 0 … {num_rows - 1} without a gap",
    )
    context = await _written(None, 0, request.aux, tools)
    return Seeded(state.prompt, context, num_rows), num_rows


async def extend(state: Usable, request: ExtendContext, tools: Tools) -> tuple[Usable, int]:
    """Rows behind the context; those wholly before its end are a retry and change nothing."""
    num_rows, end = request.aux.num_rows, request.end
    demand(num_rows >= 1, "INVALID_ARGUMENT", "0 positions, they must be at least 1")
    demand(
        end - request.first == num_rows,
        "FAILED_PRECONDITION",
        f"{num_rows} positions from {request.first} to {end - 1} have a gap",
    )
    if end <= state.context_len:
        return state, state.context_len
    demand(
        request.first == state.context_len,
        "FAILED_PRECONDITION",
        f"context_len is {state.context_len}, positions start at {request.first}",
    )
    demand_fits(end, tools.drafter.shape)
    tools.hold(tools.drafter.context_bytes(max(end, state.prompt.length)))
    context = await _written(state.context, state.context_len, request.aux, tools)
    return replace(state, context=context, context_len=end), end


async def draft(
    state: Seeded | Drafting, request: DraftBlock, tools: Tools
) -> tuple[Drafting, Draft]:
    """A block behind the context; an equal request gets the same block without work."""
    demand_sound_draft(request, tools.drafter.shape)
    demand(
        request.context_len == state.context_len,
        "FAILED_PRECONDITION",
        f"context_len is {state.context_len}, the request says {request.context_len}",
    )
    if isinstance(state, Drafting) and state.drafted_for == request:
        return state, state.draft
    demand_fits(state.context_len + 1 + request.num_drafts, tools.drafter.shape)
    made = await tools.draft(
        BlockAsk(state.context, state.context_len, request.bonus_id, request.num_drafts)
    )
    demand_kept_word(made, request, tools.drafter)
    return Drafting(state.prompt, state.context, state.context_len, request, made), made


async def close(
    state: Opened | Restored | Seeded | Drafting, request: CloseSession, tools: Tools
) -> tuple[Closed, None]:
    return Closed(Ending.CLOSED, "closed by its client"), None


TABLE: Final[dict[tuple[type, type], Callable[..., Awaitable[tuple[Any, Any]]]]] = {
    (Opened, Restore): restore,
    (Restored, Restore): restore,
    (Seeded, Restore): restore_seeded,
    (Drafting, Restore): restore,
    (Restored, SeedContext): seed,
    (Seeded, ExtendContext): extend,
    (Drafting, ExtendContext): extend,
    (Seeded, DraftBlock): draft,
    (Drafting, DraftBlock): draft,
    (Opened, CloseSession): close,
    (Restored, CloseSession): close,
    (Seeded, CloseSession): close,
    (Drafting, CloseSession): close,
}

# State by state, the limit of SessionLimits that it may wait.
WAITS: Final[dict[type, str]] = {
    Opened: "opened_s",
    Restored: "restored_s",
    Seeded: "seeded_s",
    Drafting: "drafting_s",
}


# ---- what the owner asks of a state


def wait_s(state: State, limits: SessionLimits) -> float:
    """How long a session in `state` waits for a request that it can serve."""
    limit: float = getattr(limits, WAITS[type(state)])
    return limit


def is_early(state: State, request: Request) -> bool:
    """Whether `request` lies ahead of the context: what fills the gap may be on its way."""
    if not isinstance(state, Seeded | Drafting):
        return False
    if isinstance(request, DraftBlock):
        return request.context_len > state.context_len
    return isinstance(request, ExtendContext) and request.first > state.context_len


def held_bytes(state: State, drafter: DflashDrafter) -> int:
    """Bytes of context that a session in `state` has reserved."""
    if isinstance(state, Restored):
        return drafter.context_bytes(state.prompt.length)
    if isinstance(state, Seeded | Drafting):
        return drafter.context_bytes(max(state.context_len, state.prompt.length))
    return 0


def why_not(state: State, request: Request) -> str:
    """What a caller is told about a pair that the table lacks."""
    where = f"{type(request).__name__} in state {type(state).__name__}"
    if isinstance(state, Seeded | Drafting):
        return f"{where}, context_len is {state.context_len}"
    return where


def next_states(state: type, request: type) -> tuple[str, ...]:
    """The names of the states that a row of TABLE may lead to, from its transition's annotation."""
    target = get_args(get_type_hints(TABLE[state, request])["return"])[0]
    if isinstance(target, TypeVar):
        return (state.__name__,)
    return tuple(kind.__name__ for kind in get_args(target) or (target,))


# ---- parts


def prompt_of(plan: RestorePlan) -> Prompt:
    raw = array("I", plan.prompt_ids).tobytes()
    return Prompt(len(plan.prompt_ids), hashlib.sha256(raw).digest())


def evicted_positions(length: int, *, sink: int, window: int) -> range:
    """Positions of a prompt that neither sink nor window keeps: [sink, length - window)."""
    return range(sink, max(sink, length - window))


_DONE: Final = object()


async def _banks(
    plan: RestorePlan, context: Context | None, context_len: int, tools: Tools
) -> Banks:
    """The drafter's banks, one job a step."""
    steps: Iterator[LayerBank | None] = await tools.work(
        tools.drafter.restore, plan, context, context_len
    )
    layers: list[LayerBank] = []
    num_bytes, most = 0, tools.limits.max_restore_bytes
    while (bank := await tools.work(next, steps, _DONE)) is not _DONE:
        if bank is None:
            continue
        num_bytes += bank.k.bits.nbytes + bank.v.bits.nbytes
        demand(
            num_bytes <= most,
            "RESOURCE_EXHAUSTED",
            f"the banks take {num_bytes} bytes or more, the limit is {most}",
        )
        layers.append(bank)
    length = len(plan.prompt_ids)
    evicted = evicted_positions(length, sink=plan.sink, window=plan.window)
    return Banks(tuple(layers), evicted, length)


async def _written(context: Context | None, context_len: int, aux: Aux, tools: Tools) -> Context:
    """The context with the rows of `aux` behind context_len.

    All of them are checked before the first is written.
    """
    piece_len, num_rows = tools.drafter.shape.max_extend_len, aux.num_rows
    if num_rows > piece_len:
        for index in range(aux.num_arrays):
            await tools.work(aux.check, index)
    for first in range(0, num_rows, piece_len):
        last = min(first + piece_len, num_rows)
        context = await tools.work(
            _write, tools.drafter, context, context_len + first, aux, first, last
        )
    assert context is not None
    return context


def _write(
    drafter: DflashDrafter,
    context: Context | None,
    context_len: int,
    aux: Aux,
    first: int,
    last: int,
) -> Context:
    return drafter.extend(context, context_len, aux.rows(first, last))
