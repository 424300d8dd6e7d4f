"""From the body of a request to what is to be generated.  Pure but for the noise of a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kakeya.config.http import HttpLimits
from kakeya.console.request import GenerationRequest
from kakeya.decoding import Reshaping, Sampling
from kakeya.http import fields
from kakeya.http.conversation import messages_of
from kakeya.http.errors import BadField
from kakeya.http.shapes import ChatShape, Shape, TextShape


@dataclass(frozen=True, slots=True)
class Asked:
    """requests: one a prompt; choice i answers requests[i].  model "": whichever is here."""

    model: str
    requests: tuple[GenerationRequest, ...]
    shape: Shape
    is_stream: bool
    wants_usage: bool
    echo: bool = False


def chat_asked(body: Mapping[str, Any], *, limits: HttpLimits, rng: Random) -> Asked:
    """Of POST /v1/chat/completions.  Raises BadField naming the field that is wrong."""
    fields.demand_supported(body)
    messages = messages_of(body.get("messages"), max_messages=limits.max_messages)
    asked = GenerationRequest(messages=messages, num_top=fields.chat_num_top(body))
    return _asked(body, [asked], ChatShape(), rng)


def text_asked(body: Mapping[str, Any], *, limits: HttpLimits, rng: Random) -> Asked:
    """Of POST /v1/completions.  Raises BadField naming the field that is wrong."""
    fields.demand_supported(body)
    prompts = prompts_of(body.get("prompt"), max_prompts=limits.max_prompts)
    echo, num_top = fields.flag(body, "echo"), fields.integer(body, "logprobs")
    scores_prompt = echo and num_top is not None
    if scores_prompt and len(prompts) > limits.max_scored_prompts:
        raise BadField(
            "prompt",
            f"prompt has {len(prompts)} entries, with echo and logprobs it must be at most"
            f" {limits.max_scored_prompts}",
        )
    prompts[0] = replace(prompts[0], num_top=num_top, scores_prompt=scores_prompt)
    return replace(_asked(body, prompts, TextShape(), rng), echo=echo)


def _asked(
    body: Mapping[str, Any], prompts: list[GenerationRequest], shape: Shape, rng: Random
) -> Asked:
    is_stream = fields.flag(body, "stream")
    common = replace(
        prompts[0],
        max_tokens=fields.max_tokens(body),
        must_fit=True,
        stops=fields.stops(body),
        sampling=sampling_of(body, rng),
    )
    fields.text(body, "user")
    requests = [
        replace(common, text=each.text, messages=each.messages, prompt_ids=each.prompt_ids)
        for each in prompts
    ]
    return Asked(
        model=fields.text(body, "model"),
        requests=tuple(requests),
        shape=shape,
        is_stream=is_stream,
        wants_usage=fields.wants_usage(body, is_stream=is_stream),
    )


def sampling_of(body: Mapping[str, Any], rng: Random) -> Sampling:
    """Without a seed every request gets its own; without a temperature it is 1, as OpenAI's."""
    seed = fields.integer(body, "seed")
    top_p = fields.number(body, "top_p", 1.0)
    return Sampling(
        temperature=fields.number(body, "temperature", 1.0),
        top_k=fields.integer(body, "top_k") or 0,
        # 0 keeps the best id only; the loop knows no empty nucleus.
        top_p=top_p or 1e-9,
        min_p=fields.number(body, "min_p", 0.0),
        reshaping=Reshaping(
            repetition=fields.number(body, "repetition_penalty", 1.0),
            frequency=fields.number(body, "frequency_penalty", 0.0),
            presence=fields.number(body, "presence_penalty", 0.0),
            biases=fields.biases(body),
        ),
        seed=rng.getrandbits(63) if seed is None else seed % (1 << 64),
    )


def prompts_of(value: Any, *, max_prompts: int) -> list[GenerationRequest]:
    """A text, token ids, or a list of either.  Raises BadField."""
    several = value if isinstance(value, list) and not _is_ids(value) else [value]
    if not 1 <= len(several) <= max_prompts:
        raise BadField(
            "prompt",
            f"prompt has {len(several)} entries, it must be at least 1 and at most {max_prompts}",
        )
    return [_prompt(each) for each in several]


def _prompt(value: Any) -> GenerationRequest:
    if isinstance(value, str) and value:
        return GenerationRequest(text=value, raw=True)
    if isinstance(value, list) and value and _is_ids(value):
        return GenerationRequest(prompt_ids=tuple(value), raw=True)
    if value in ("", []):
        raise BadField("prompt", "the prompt is empty")
    raise BadField(
        "prompt",
        f"prompt is {fields.shown(value)}, it must be a text, a list of token ids, or a list of"
        " either",
    )


def _is_ids(value: list[Any]) -> bool:
    return bool(value) and all(type(each) is int and 0 <= each < 1 << 32 for each in value)


__all__ = ["Asked", "chat_asked", "prompts_of", "sampling_of", "text_asked"]
