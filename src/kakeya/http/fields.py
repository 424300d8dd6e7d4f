"""The fields of a request's JSON body: their types and bounds, and those we know but lack.  Pure.

Spec: specs/http.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kakeya.decoding.penalties import MAX_BIASES
from kakeya.http.errors import BadField

# Fields other servers act on and we do not, with the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest value, both allowed."""

    low: float
    high: float


NUMBERS: Mapping[str, Bounds] = {
    "temperature": Bounds(0, 2),
    "top_p": Bounds(0, 1),
    "min_p": Bounds(0, 1),
    "presence_penalty": Bounds(-2, 2),
    "frequency_penalty": Bounds(-2, 2),
    "repetition_penalty": Bounds(0.01, 100),
}
INTEGERS: Mapping[str, Bounds] = {
    "max_tokens": Bounds(1, (1 << 31) - 1),
    "max_completion_tokens": Bounds(1, (1 << 31) - 1),
    "top_k": Bounds(0, (1 << 31) - 1),
    "seed": Bounds(-(1 << 63), (1 << 64) - 1),
    # Of chat, and of completions, where `logprobs` itself is the number.
    "top_logprobs": Bounds(0, 20),
    "logprobs": Bounds(0, 20),
}
MAX_STOPS = 4
BIAS = Bounds(-100, 100)


def body_of(data: bytes) -> dict[str, Any]:
    """The JSON object of a body.  Raises BadField."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise BadField("", f"the body is not JSON: {why}") from None
    if not isinstance(value, dict):
        raise BadField("", "the body is not a JSON object")
    return value


def demand_supported(body: Mapping[str, Any]) -> None:
    """Raise BadField for the first field that asks for what this node does not do."""
    for name, neutral in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not any(_same(value, each) for each in neutral):
            raise BadField(
                name, f"{name} is not supported by this node", code="unsupported_parameter"
            )


def _same(value: Any, other: Any) -> bool:
    # True == 1 in Python, and not in JSON.
    return type(value) is type(other) and bool(value == other)


def number(body: Mapping[str, Any], name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadField(name, f"{name} is {shown(value)}, it must be a number")
    return float(_bounded(name, value, NUMBERS[name]))


def integer(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadField(name, f"{name} is {shown(value)}, it must be a whole number")
    return int(_bounded(name, value, INTEGERS[name]))


def _bounded(name: str, value: Any, bounds: Bounds) -> Any:
    # Written so that NaN fails.
    if not bounds.low <= value <= bounds.high:
        raise BadField(
            name,
            f"{name} is {value}, it must be at least {bounds.low:.12g}"
            f" and at most {bounds.high:.12g}",
        )
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise BadField(name, f"{name} is {shown(value)}, it must be true or false")
    return value


def text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadField(name, f"{name} is {shown(value)}, it must be a text")
    return value


def stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    """One stop string, or a list of at most MAX_STOPS; none empty."""
    value = body.get("stop")
    if value is None:
        return ()
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise BadField("stop", f"stop is {shown(value)}, it must be a text or a list of texts")
    if len(found) > MAX_STOPS:
        raise BadField("stop", f"stop has {len(found)} texts, at most {MAX_STOPS} are allowed")
    if not all(found):
        raise BadField("stop", "a text of stop is empty")
    return tuple(found)


def biases(body: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """logit_bias: token ids, as JSON spells keys, with what is added to their logits."""
    value = body.get("logit_bias")
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise BadField(
            "logit_bias", f"logit_bias must be an object of at most {MAX_BIASES} token ids"
        )
    return tuple(_bias(key, each) for key, each in value.items())


def _bias(key: str, value: Any) -> tuple[int, float]:
    is_id = key.isascii() and key.isdigit() and len(key) <= 10
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_id or not is_number or not BIAS.low <= value <= BIAS.high:
        raise BadField(
            "logit_bias",
            f"logit_bias must give token ids numbers from {BIAS.low:g} to {BIAS.high:g}",
        )
    return int(key), float(value)


def chat_num_top(body: Mapping[str, Any]) -> int | None:
    """logprobs says whether, top_logprobs how many alternatives; None: no scores."""
    num_top = integer(body, "top_logprobs")
    if flag(body, "logprobs"):
        return num_top or 0
    if num_top is not None:
        raise BadField("top_logprobs", "top_logprobs is only allowed with logprobs")
    return None


def max_tokens(body: Mapping[str, Any]) -> int | None:
    """max_tokens, or max_completion_tokens, which is its newer name."""
    old, new = integer(body, "max_tokens"), integer(body, "max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise BadField(
            "max_completion_tokens",
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them",
        )
    return new if old is None else old


def wants_usage(body: Mapping[str, Any], *, is_stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not is_stream:
        raise BadField("stream_options", "stream_options is only allowed with stream")
    if not isinstance(options, dict):
        raise BadField("stream_options", "stream_options must be an object")
    return flag(options, "include_usage")


def shown(value: Any) -> str:
    """A value of the caller's for an error message: short, and never a whole prompt."""
    if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return "a text"
    return "null" if value is None else str(value).lower()[:40]


__all__ = [
    "INTEGERS",
    "NUMBERS",
    "UNSUPPORTED",
    "Bounds",
    "biases",
    "body_of",
    "chat_num_top",
    "demand_supported",
    "flag",
    "integer",
    "max_tokens",
    "number",
    "shown",
    "stops",
    "text",
    "wants_usage",
]
