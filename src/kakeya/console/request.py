"""What a generation is asked for, from whichever door the question came.

Knows neither protobuf nor JSON; says what is out of bounds before any work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kakeya.config.node import NodeLimits
from kakeya.decoding import GREEDY, Sampling
from kakeya.errors import Refused, demand


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Exactly one of text, messages and prompt_ids is given.

    messages: as chat templates take them, role and content at least.  raw: `text` as it is, no
    template around it.  max_tokens None: as many as the context holds.  must_fit: an answer of
    max_tokens that the context cannot hold is refused; else it ends where the context does.
    num_top: blocks carry scores with so many alternatives; None: no scores.  scores_prompt: the
    first one carries those of the prompt's ids as well.
    num_drafts, sink, window None, and kv_mode, draft_on, exact "": as the node is set.
    proposer: the model_id whose drafts are used alone; "": whoever promises most.
    """

    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    raw: bool = False
    max_tokens: int | None = None
    must_fit: bool = False
    stops: tuple[str, ...] = ()
    sampling: Sampling = GREEDY
    num_top: int | None = None
    scores_prompt: bool = False
    plain: bool = False
    draft_on: str = ""
    proposer: str = ""
    num_drafts: int | None = None
    kv_mode: str = ""
    sink: int | None = None
    window: int | None = None
    exact: str = ""


class ContextTooLong(Refused):
    """Prompt and answer do not fit into the context."""

    def __init__(self, *, prompt_len: int, max_tokens: int | None, max_context_len: int) -> None:
        answer = "an answer" if max_tokens is None else f"the {max_tokens} tokens of its answer"
        super().__init__(
            "INVALID_ARGUMENT",
            f"the prompt has {prompt_len} tokens, with {answer} that is more than the context"
            f" of {max_context_len} holds",
        )


def demand_small(request: GenerationRequest, limits: NodeLimits) -> None:
    """Raise Refused(INVALID_ARGUMENT) for what is out of bounds."""
    num_bytes = prompt_bytes(request)
    longest = max((len(text.encode()) for text in request.stops), default=0)
    num_given = sum(map(bool, (request.text, request.messages, request.prompt_ids)))
    for holds, why in (
        (
            num_bytes <= limits.max_prompt_bytes,
            f"the prompt has {num_bytes} bytes, the limit is {limits.max_prompt_bytes}",
        ),
        (
            len(request.stops) <= limits.max_stop_strings,
            f"{len(request.stops)} stop strings are given, the limit is {limits.max_stop_strings}",
        ),
        (
            longest <= limits.max_stop_bytes,
            f"a stop string has {longest} bytes, the limit is {limits.max_stop_bytes}",
        ),
        (num_given == 1, f"{num_given} of text, messages and prompt_ids are given, it must be one"),
    ):
        demand(holds, "INVALID_ARGUMENT", why)


def demand_scorable(request: GenerationRequest, prompt_len: int, limits: NodeLimits) -> None:
    """Raise Refused(INVALID_ARGUMENT) for a prompt with too many ids to score them all."""
    most = limits.max_scored_prompt_len
    demand(
        not request.scores_prompt or prompt_len <= most,
        "INVALID_ARGUMENT",
        f"the prompt has {prompt_len} tokens, the log probabilities of at most {most} are told",
    )


def prompt_bytes(request: GenerationRequest) -> int:
    """About what the prompt weighs: its texts in UTF-8, four bytes a token id."""
    contents = (text_bytes(message) for message in request.messages)
    return len(request.text.encode()) + sum(contents) + 4 * len(request.prompt_ids)


def text_bytes(value: Any) -> int:
    """Bytes of all texts in a message, however deep they lie."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, Mapping):
        return sum(text_bytes(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(text_bytes(each) for each in value)
    return 0


__all__ = [
    "ContextTooLong",
    "GenerationRequest",
    "demand_scorable",
    "demand_small",
    "prompt_bytes",
]
