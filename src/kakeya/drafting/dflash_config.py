"""The shape of a DFlash drafter, out of its config.json: what is computed, what is refused.

Pure: objects already parsed come in, a frozen DflashConfig goes out.  The layout is that of the
published checkpoints: a Qwen3 config, and under `dflash_config` what makes it a drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kakeya.compute.config_fields import (
    demand_only,
    listed_types,
    number,
    shortened,
    table,
    truth,
    whole,
)
from kakeya.compute.ropes import Rope, read_ropes
from kakeya.errors import demand

ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
LAYER_TYPES = ("full_attention", "sliding_attention")
# Blocks longer than any published checkpoint's by far; bounds what a context keeps beside it.
MAX_BLOCK_LEN = 128
# All pairs of neighbouring candidates are scored; published checkpoints have 16.
MAX_CANDIDATES = 256

# Field names that change what a drafter computes, with the only values that we compute.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "quantization_config": (None,),
    "quantization": (None,),
    "attn_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "add_cross_attention": (None, False),
    "is_encoder_decoder": (None, False),
    "mlp_bias": (None, False),
    "speculators_model_type": (None,),
    "markov_rank": (None, 0),
    "enable_confidence_head": (None, False),
}


@dataclass(frozen=True, slots=True)
class VerifierShape:
    """What a drafter must know of a verifier: whether it can be served by it at all.

    vocab_size: rows of the verifier's embedding.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int


@dataclass(frozen=True, slots=True)
class Convolutions:
    """DFlash 2: causal convolutions along the block, round attention and MLP of every layer.

    kernel_size: rows a row is mixed from, itself the first.  group_size: channels that share a
    dynamic weight.
    """

    kernel_size: int
    group_size: int


@dataclass(frozen=True, slots=True)
class SelectorShape:
    """DFlash 2: of the `num_candidates` likeliest ids of each row, a path is chosen.

    rank: width of the codebooks that say how well an id follows another.
    """

    rank: int
    num_candidates: int


@dataclass(frozen=True, slots=True)
class DflashConfig:
    """The shape of a drafter, in the words of its config.json where those are plain."""

    vocab_size: int  # the verifier's
    hidden_size: int  # the verifier's
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_len: int
    rms_norm_eps: float
    rope: Rope
    has_attention_bias: bool  # on q, k, v and o
    layer_types: tuple[str, ...]
    sliding_window: int | None  # rows of a sliding layer attend to (p - sliding_window, p]
    causal_layers: tuple[bool, ...]  # whether a row of the block sees the rows behind it
    block_len: int  # trained for; counts the bonus
    mask_id: int
    aux_layers: tuple[int, ...]  # aux i is the output of the verifier's layer aux_layers[i]
    num_verifier_layers: int | None
    embedding_scale: float
    output_multiplier: float
    logit_cap: float | None  # logits x become cap * tanh(x / cap)
    draft_vocab_size: int | None  # rows of the drafter's own head, where it has fewer
    cuts_verifier_head: bool  # those rows are the verifier's, named by d2t
    convolutions: Convolutions | None
    selector: SelectorShape | None


def read_dflash_config(raw: Mapping[str, Any]) -> DflashConfig:
    """The shape of the drafter that config.json describes.

    Raises Refused: UNIMPLEMENTED for what we do not compute, INVALID_ARGUMENT for a field that
    is missing, out of bounds or at odds with another; the text names the field and its value.
    """
    # What stands in dflash_config goes first, as in the reference implementation.
    fields = {**raw, **table(raw, "dflash_config")}
    for name, allowed in _NEUTRAL.items():
        demand_only(fields, name, allowed)
    is_second = _is_second(fields)
    hidden_size = whole(fields, "hidden_size", 1, 1 << 17)
    vocab_size = whole(fields, "vocab_size", 2, 1 << 22)
    num_layers = whole(fields, "num_hidden_layers", 1, 256)
    num_heads, num_kv_heads, head_dim = _heads(fields)
    layer_types, sliding_window = _layer_types(fields, num_layers)
    num_verifier_layers = _optional_whole(fields, "num_target_layers", 1, 1024)
    return DflashConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=whole(fields, "intermediate_size", 1, 1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_context_len=whole(fields, "max_position_embeddings", 1, 1 << 24, default=32_768),
        rms_norm_eps=number(fields, "rms_norm_eps", 0.0, 1.0, default=1e-6),
        rope=_rope(fields, layer_types),
        has_attention_bias=truth(fields, "attention_bias"),
        layer_types=layer_types,
        sliding_window=sliding_window,
        causal_layers=_causal_layers(fields, layer_types),
        block_len=whole(fields, "block_size", 2, MAX_BLOCK_LEN, default=16),
        mask_id=whole(fields, "mask_token_id", 0, vocab_size - 1),
        aux_layers=_aux_layers(fields, num_layers, num_verifier_layers),
        num_verifier_layers=num_verifier_layers,
        embedding_scale=number(fields, "input_embedding_scale", -1e6, 1e6, default=1.0),
        output_multiplier=number(fields, "output_multiplier", -1e6, 1e6, default=1.0),
        logit_cap=number(fields, "final_logit_softcapping", 0.0, 1e6, default=0.0) or None,
        draft_vocab_size=_draft_vocab_size(fields, vocab_size, is_second=is_second),
        cuts_verifier_head=_cuts_verifier_head(fields),
        convolutions=_convolutions(fields, hidden_size) if is_second else None,
        selector=_selector(fields, vocab_size) if is_second else None,
    )


def demand_fits(config: DflashConfig, verifier: VerifierShape) -> None:
    """Raise Refused(FAILED_PRECONDITION) where the drafter was not made for such a verifier."""
    for name, value, wanted in (
        ("hidden_size", verifier.hidden_size, config.hidden_size),
        ("vocab_size", verifier.vocab_size, config.vocab_size),
        ("num_layers", verifier.num_layers, config.num_verifier_layers or verifier.num_layers),
    ):
        demand(
            value == wanted,
            "FAILED_PRECONDITION",
            f"the verifier's {name} is {value}, the drafter was made for {wanted}",
        )
    last = max(config.aux_layers)
    demand(
        last < verifier.num_layers,
        "FAILED_PRECONDITION",
        f"target_layer_ids has {last}, the verifier has layers 0 to {verifier.num_layers - 1}",
    )


def _is_second(fields: Mapping[str, Any]) -> bool:
    """Whether the config describes a DFlash 2 drafter."""
    named = fields.get("architectures") or [ARCHITECTURES[0]]
    demand(
        isinstance(named, list) and any(each in ARCHITECTURES for each in named),
        "UNIMPLEMENTED",
        f"architectures is {shortened(named)}, supported are {', '.join(ARCHITECTURES)}",
    )
    return ARCHITECTURES[1] in named or bool(fields.get("selector_rank"))


def _rope(fields: Mapping[str, Any], layer_types: tuple[str, ...]) -> Rope:
    """All layers turn alike: a rope for one type of layer would be passed over."""
    for name in ("rope_parameters", "rope_scaling"):
        for kind in LAYER_TYPES:
            demand(
                kind not in table(fields, name),
                "UNIMPLEMENTED",
                f"{name} has {kind}, supported is one rope for all layers",
            )
    return read_ropes(fields, layer_types, {})[layer_types[0]]


def _heads(fields: Mapping[str, Any]) -> tuple[int, int, int]:
    num_heads = whole(fields, "num_attention_heads", 1, 1024)
    num_kv_heads = whole(fields, "num_key_value_heads", 1, num_heads, default=num_heads)
    demand(
        num_heads % num_kv_heads == 0,
        "INVALID_ARGUMENT",
        f"num_key_value_heads is {num_kv_heads}, it must divide num_attention_heads {num_heads}",
    )
    head_dim = whole(fields, "head_dim", 2, 1024, default=128)
    demand(head_dim % 2 == 0, "INVALID_ARGUMENT", f"head_dim is {head_dim}, it must be even")
    return num_heads, num_kv_heads, head_dim


def _layer_types(fields: Mapping[str, Any], num_layers: int) -> tuple[tuple[str, ...], int | None]:
    """One type per layer, and the window of the sliding ones (None where no layer slides)."""
    window = fields.get("sliding_window")
    given = fields.get("layer_types")
    if given is None:
        slides = window is not None and truth(fields, "use_sliding_window")
        first = whole(fields, "max_window_layers", 0, 1 << 20, default=28)
        given = [LAYER_TYPES[slides and i >= first] for i in range(num_layers)]
    given = listed_types(given, num_layers, LAYER_TYPES)
    if "sliding_attention" not in given:
        return tuple(given), None
    # Absent is not false: published configs list sliding layers and a window, and no more.
    demand(
        window is not None and fields.get("use_sliding_window") in (None, True),
        "INVALID_ARGUMENT",
        "layer_types has sliding_attention, but sliding_window is null or use_sliding_window false",
    )
    return tuple(given), whole(fields, "sliding_window", 1, 1 << 24)


def _causal_layers(fields: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """`is_causal` holds for all layers; where it is not said, sliding ones are causal."""
    if fields.get("is_causal") is None:
        return tuple(kind == "sliding_attention" for kind in layer_types)
    return (truth(fields, "is_causal"),) * len(layer_types)


def _aux_layers(
    fields: Mapping[str, Any], num_layers: int, num_verifier_layers: int | None
) -> tuple[int, ...]:
    """The verifier's layers whose outputs the drafter reads; spread evenly where not said."""
    given = fields.get("target_layer_ids")
    if given is None:
        depth = whole(fields, "num_target_layers", 1, 1024)
        if num_layers == 1:
            return (depth // 2,)
        first, last = 1, depth - 3
        given = [round(first + i * (last - first) / (num_layers - 1)) for i in range(num_layers)]
    highest = (num_verifier_layers or 1024) - 1
    demand(
        isinstance(given, list)
        and 1 <= len(given) <= 64
        and all(type(each) is int and 0 <= each <= highest for each in given),
        "INVALID_ARGUMENT",
        f"target_layer_ids is {shortened(given)}, it must list layers from 0 to {highest}",
    )
    return tuple(given)


def _draft_vocab_size(fields: Mapping[str, Any], vocab_size: int, *, is_second: bool) -> int | None:
    own = _optional_whole(fields, "draft_vocab_size", 1, vocab_size)
    if own is None or own == vocab_size:
        return None
    demand(
        not is_second,
        "UNIMPLEMENTED",
        f"draft_vocab_size is {own}, a selector needs all of vocab_size {vocab_size}",
    )
    return own


def _cuts_verifier_head(fields: Mapping[str, Any]) -> bool:
    """Said aloud, never guessed from a head that is missing."""
    demand_only(fields, "draft_head", (None, "own", "verifier"))
    return fields.get("draft_head") == "verifier" and fields.get("draft_vocab_size") is not None


def _convolutions(fields: Mapping[str, Any], hidden_size: int) -> Convolutions:
    size = whole(fields, "conv_kernel_size", 1, 64)
    group_size = whole(fields, "conv_group_size", 1, hidden_size)
    demand(
        hidden_size % group_size == 0,
        "INVALID_ARGUMENT",
        f"conv_group_size is {group_size}, it must divide hidden_size {hidden_size}",
    )
    return Convolutions(size, group_size)


def _selector(fields: Mapping[str, Any], vocab_size: int) -> SelectorShape:
    return SelectorShape(
        rank=whole(fields, "selector_rank", 1, 1 << 16),
        num_candidates=whole(fields, "selector_top_k", 1, min(vocab_size, MAX_CANDIDATES)),
    )


def _optional_whole(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    return None if fields.get(name) is None else whole(fields, name, low, high)
