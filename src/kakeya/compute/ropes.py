"""Rotary position embeddings as a config.json words them: one Rope for each type of layer.

Pure: the frequencies themselves are computed by the twins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kakeya.compute.config_fields import number, shortened, table, whole
from kakeya.errors import demand

ROPE_TYPES = ("default", "linear", "llama3", "proportional")
# Of the layouts that name a rope for each type of layer: the field of the base in the older one.
_OLD_BASES = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The rope scaling of Llama 3.1: long wavelengths divided by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Angle per position of pair i: theta^(-2i / head_dim), scaled.

    factor: every frequency is divided by it.  rotated_share: pairs at or beyond this share of
    head_dim / 2 do not turn.  llama3: instead of `factor`.
    """

    theta: float
    factor: float = 1.0
    rotated_share: float = 1.0
    llama3: Llama3Scaling | None = None


def read_ropes(
    raw: Mapping[str, Any],
    layer_types: Sequence[str],
    defaults: Mapping[str, Mapping[str, Any]],
) -> dict[str, Rope]:
    """The rope of each type of layer.  `defaults`: the family's own; empty: all layers share one.

    Reads `rope_parameters` (the new layout) or rope_theta and rope_scaling.  Raises Refused.
    """
    nested = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    if not defaults:
        rope = _rope({"rope_theta": raw.get("rope_theta"), **nested})
        return dict.fromkeys(layer_types, rope)
    ropes = {}
    for layer_type in dict.fromkeys(layer_types):
        known = defaults[layer_type]
        if layer_type in nested:
            fields = {"rope_theta": known["rope_theta"], **table(nested, layer_type)}
        else:
            # The older layout scales full layers only.
            scaling = nested if layer_type == "full_attention" else {}
            base = raw.get(_OLD_BASES[layer_type])
            fields = {**known, **scaling, **({} if base is None else {"rope_theta": base})}
        ropes[layer_type] = _rope(fields)
    return ropes


def _rope(fields: Mapping[str, Any]) -> Rope:
    theta = number(fields, "rope_theta", 1.0, 1e12, default=10_000.0)
    kind = fields.get("rope_type", fields.get("type", "default"))
    demand(
        kind in ROPE_TYPES,
        "UNIMPLEMENTED",
        f"rope_type is {shortened(kind)}, supported are {', '.join(ROPE_TYPES)}",
    )
    if kind == "proportional":
        share = number(fields, "partial_rotary_factor", 0.0, 1.0, default=1.0)
        factor = number(fields, "factor", 1e-6, 1e6, default=1.0)
        return Rope(theta, factor=factor, rotated_share=share)
    turned = fields.get("partial_rotary_factor")
    demand(
        turned in (None, 1), "UNIMPLEMENTED", f"partial_rotary_factor is {turned}, supported is 1"
    )
    if kind == "linear":
        return Rope(theta, factor=number(fields, "factor", 1e-6, 1e6))
    return Rope(theta, llama3=_llama3(fields) if kind == "llama3" else None)


def _llama3(fields: Mapping[str, Any]) -> Llama3Scaling:
    scaling = Llama3Scaling(
        factor=number(fields, "factor", 1.0, 1e6),
        low_freq_factor=number(fields, "low_freq_factor", 1e-6, 1e6),
        high_freq_factor=number(fields, "high_freq_factor", 1e-6, 1e6),
        original_max_len=whole(fields, "original_max_position_embeddings", 1, 1 << 24),
    )
    demand(
        scaling.high_freq_factor > scaling.low_freq_factor,
        "INVALID_ARGUMENT",
        f"high_freq_factor is {scaling.high_freq_factor}, "
        f"it must be above low_freq_factor {scaling.low_freq_factor}",
    )
    return scaling
