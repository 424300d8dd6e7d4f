"""Bounds of what a session is asked, and of what its drafter answers.

Pure.  Every refusal names the value and the bound.
"""

from __future__ import annotations

from kakeya.drafting.drafter import DflashDrafter, DrafterShape
from kakeya.drafting.proposer import Draft
from kakeya.drafting.session_states import DraftBlock, Restore
from kakeya.errors import demand
from kakeya.wire.tensor import MAX_POSITION


def demand_sound_restore(request: Restore, drafter: DflashDrafter) -> None:
    """Raise Refused naming the first value of a Restore that is out of its bounds."""
    plan, shape, model_id = request.plan, drafter.shape, drafter.model_id
    demand(
        request.model_id in ("", model_id),
        "FAILED_PRECONDITION",
        f"the session is of model {model_id!r}, the request names {request.model_id[:128]!r}",
    )
    length = len(plan.prompt_ids)
    demand(
        1 <= length <= shape.max_context_len,
        "INVALID_ARGUMENT",
        f"the length of prompt_ids is {length},"
        f" it must be at least 1 and at most {shape.max_context_len}",
    )
    largest = max(plan.prompt_ids)
    demand(
        largest < shape.vocab_size,
        "INVALID_ARGUMENT",
        f"an id of prompt_ids is {largest}, it must be below {shape.vocab_size}",
    )
    for name, value, least in (("sink", plan.sink, 0), ("window", plan.window, 1)):
        demand(
            least <= value <= MAX_POSITION,
            "INVALID_ARGUMENT",
            f"{name} is {value}, it must be at least {least} and at most {MAX_POSITION}",
        )


def demand_sound_draft(request: DraftBlock, shape: DrafterShape) -> None:
    demand(
        1 <= request.num_drafts <= shape.max_num_drafts,
        "INVALID_ARGUMENT",
        f"block_size is {request.num_drafts},"
        f" it must be at least 1 and at most {shape.max_num_drafts}",
    )
    demand(
        request.bonus_id < shape.vocab_size,
        "INVALID_ARGUMENT",
        f"bonus_token_id is {request.bonus_id}, it must be below {shape.vocab_size}",
    )


def demand_fits(end: int, shape: DrafterShape) -> None:
    demand(
        end <= shape.max_context_len,
        "INVALID_ARGUMENT",
        f"positions would reach to {end - 1}, the drafter has room for {shape.max_context_len}",
    )


def demand_kept_word(made: Draft, request: DraftBlock, drafter: DflashDrafter) -> None:
    demand(
        len(made.ids) == request.num_drafts,
        "INTERNAL",
        f"{drafter.model_id} drafted {len(made.ids)} ids, asked for were {request.num_drafts}",
    )
    demand(
        min(made.ids) >= 0 and max(made.ids) < drafter.shape.vocab_size,
        "INTERNAL",
        f"{drafter.model_id} drafted an id outside 0 … {drafter.shape.vocab_size - 1}",
    )
