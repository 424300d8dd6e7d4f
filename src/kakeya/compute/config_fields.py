"""Single fields of a config.json a stranger wrote: typed, within bounds, or refused by name.

Pure, and knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kakeya.errors import demand


def whole(
    raw: Mapping[str, Any], name: str, low: int, high: int, *, default: int | None = None
) -> int:
    """The whole number `name`; an absent one, or null, is `default`.  Raises Refused."""
    value = raw.get(name)
    value = default if value is None else value
    demand(
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, it must be a whole number from {low} to {high}",
    )
    assert isinstance(value, int)
    return value


def number(
    raw: Mapping[str, Any], name: str, low: float, high: float, *, default: float | None = None
) -> float:
    """The number `name`; an absent one, or null, is `default`.  Raises Refused."""
    value = raw.get(name)
    value = default if value is None else value
    demand(
        isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high,
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, it must be a number from {low:g} to {high:g}",
    )
    assert isinstance(value, (int, float))
    return float(value)


def truth(raw: Mapping[str, Any], name: str) -> bool:
    """Whether `name` is set; absent, or null, is false.  Raises Refused."""
    value = raw.get(name)
    value = False if value is None else value
    demand(
        isinstance(value, bool),
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, not true or false",
    )
    return bool(value)


def table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object `name`; absent, or null, is an empty one.  Raises Refused."""
    value = raw.get(name)
    value = {} if value is None else value
    demand(
        isinstance(value, Mapping),
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, it must be an object",
    )
    assert isinstance(value, Mapping)
    return value


def demand_only(raw: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> None:
    """Raise Refused(UNIMPLEMENTED) unless `name` is absent or has a value that we compute."""
    value = raw.get(name, allowed[0])
    demand(
        value in allowed,
        "UNIMPLEMENTED",
        f"{name} is {shortened(value)}, supported: {allowed[0]}",
    )


def listed_types(given: Any, num_layers: int, known: tuple[str, ...]) -> list[str]:
    """`layer_types` as given: one for each layer, each of them `known`.  Raises Refused."""
    demand(
        isinstance(given, list) and len(given) == num_layers,
        "INVALID_ARGUMENT",
        f"layer_types must list one type for each of the {num_layers} layers",
    )
    for kind in given:
        demand(
            kind in known,
            "UNIMPLEMENTED",
            f"layer_types has {shortened(kind)}, supported are {', '.join(known)}",
        )
    return list(given)


def shortened(value: Any) -> str:
    """A value of a stranger's file, cut to what fits in a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
