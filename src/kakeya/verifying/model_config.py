"""The shape of a decoder, out of its config.json: what is computed, and what is refused by name.

Pure: objects already parsed come in, a frozen ModelConfig goes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from kakeya.verifying.families import (
    FAMILIES,
    MODEL_TYPES,
    NEUTRAL,
    TEXT_PARTS,
    Activation,
    Family,
    NormedHeads,
)

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What may differ from layer to layer.

    kv_source: the layer whose K and V it reads: its own index, or an earlier layer's of the same
    type; then it has no k, no v of its own.  has_v_proj: False where V is what k_proj puts out.
    is_sparse: experts instead of one MLP.
    """

    layer_type: str
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    kv_source: int
    has_v_proj: bool = True
    is_sparse: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A sparse MLP: of `count` experts each row goes through the `num_chosen` likeliest.

    normalizes: the chosen ones' probabilities are scaled to a sum of 1.
    """

    count: int
    num_chosen: int
    intermediate_size: int
    normalizes: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder, in the words of its config.json where those are plain.

    num_kv_heads, head_dim and intermediate_size are those of most layers; `layers` has each one's.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context_len: int
    rms_norm_eps: float
    ropes: Mapping[str, Rope]  # by layer type
    has_tied_head: bool
    has_attention_bias: bool  # on q, k, v and o
    has_mlp_bias: bool
    layer_types: tuple[str, ...]
    sliding_window: int | None  # a sliding layer's row p attends to (p - sliding_window, p]
    eos_ids: tuple[int, ...]
    layers: tuple[LayerShape, ...]
    experts: Experts | None
    activation: Activation
    norm_offset: float  # added to every norm weight as stored
    normed_heads: NormedHeads
    has_post_norms: bool  # what attention and MLP put out is normed before it is added
    has_layer_scalar: bool
    embedding_scale: float | None  # None: 1
    attention_scale: float | None  # None: 1 / sqrt(head_dim)
    logit_cap: float | None  # logits x become cap * tanh(x / cap)
    per_layer_input_size: int  # values a layer gets from an embedding of its own; 0: none

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]


def read_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The shape of the model that config.json describes; eos ids from generation_config.json."""
    whole_raw, raw = raw, _text_part(raw)
    model_type = str(raw["model_type"])
    family = FAMILIES[model_type]
    raw = _without_mlx_quantization({**family.defaults, **raw}, whole_raw)
    for name, allowed in {**NEUTRAL, **family.fixed}.items():
        if name not in family.computes:
            demand_only(raw, name, allowed)
    hidden_size = whole(raw, "hidden_size", 1, 1 << 17)
    num_heads = whole(raw, "num_attention_heads", 1, 1024)
    num_layers = whole(raw, "num_hidden_layers", 1, 1024)
    vocab_size = whole(raw, "vocab_size", 2, 1 << 22)
    layer_types, sliding_window = _layer_types(raw, family, num_layers)
    experts = _experts(raw) if "num_experts" in family.computes else None
    layers = _layers(raw, family, layer_types, is_sparse=_sparse(raw, experts, num_layers))
    eos = generation.get("eos_token_id", raw.get("eos_token_id", whole_raw.get("eos_token_id")))
    return ModelConfig(
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=whole(raw, "intermediate_size", 1, 1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(raw, num_heads),
        head_dim=_head_dim(raw, hidden_size // num_heads),
        max_context_len=whole(raw, "max_position_embeddings", 1, 1 << 24, default=2048),
        rms_norm_eps=number(raw, "rms_norm_eps", 0.0, 1.0, default=1e-6),
        ropes=read_ropes(raw, layer_types, family.ropes),
        has_tied_head=truth(raw, "tie_word_embeddings"),
        has_attention_bias=truth(raw, "attention_bias"),
        has_mlp_bias=family.has_mlp_bias and truth(raw, "mlp_bias"),
        layer_types=layer_types,
        sliding_window=sliding_window,
        eos_ids=_eos_ids(eos, vocab_size),
        layers=layers,
        experts=experts,
        activation=family.activation,
        norm_offset=family.norm_offset,
        normed_heads=family.normed_heads,
        has_post_norms=family.has_post_norms,
        has_layer_scalar=family.has_layer_scalar,
        embedding_scale=hidden_size**0.5 if family.scales_embedding else None,
        attention_scale=_attention_scale(raw, family),
        logit_cap=_logit_cap(raw),
        per_layer_input_size=_per_layer_input_size(raw, family, vocab_size),
    )


def _text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text decoder: the whole, or the part of a model of text and images."""
    model_type = raw.get("model_type")
    demand(
        isinstance(model_type, str) and model_type in MODEL_TYPES,
        "UNIMPLEMENTED",
        f"model_type is {shortened(model_type)}, supported are {', '.join(MODEL_TYPES)}",
    )
    assert isinstance(model_type, str)
    if model_type not in TEXT_PARTS:
        return raw
    return {
        "quantization_config": raw.get("quantization_config"),
        **table(raw, "text_config"),
        "model_type": TEXT_PARTS[model_type],
    }


def _without_mlx_quantization(
    raw: Mapping[str, Any], whole_raw: Mapping[str, Any]
) -> Mapping[str, Any]:
    """`raw` without MLX's own account of its quantisation, once it was found to be computable.

    Bits and group sizes are read from the weights' shapes; only the mode is not in them.
    """
    if whole_raw.get("quantization") is None:
        return raw
    said = table(whole_raw, "quantization")
    for part in (said, *(each for each in said.values() if isinstance(each, Mapping))):
        demand_only(part, "mode", ("affine", None))
    return {name: value for name, value in raw.items() if name != "quantization_config"}


def _layer_types(
    raw: Mapping[str, Any], family: Family, num_layers: int
) -> tuple[tuple[str, ...], int | None]:
    """One type per layer, and the window of the sliding ones (None where no layer slides)."""
    # Llama has no sliding layers: a stray sliding_window there changes nothing.
    if family.slides == "never":
        return ("full_attention",) * num_layers, None
    is_sliding = family.slides == "pattern" or truth(raw, "use_sliding_window")
    window = raw.get("sliding_window") if is_sliding else None
    given = raw.get("layer_types")
    if given is None:
        slides = _sliding_by_rule(raw, family, num_layers, has_window=window is not None)
        given = ["sliding_attention" if each else "full_attention" for each in slides]
    given = listed_types(given, num_layers, LAYER_TYPES)
    if family.has_global_shapes:
        given = [*given[:-1], "full_attention"]  # whatever is written, as the reference does
    if "sliding_attention" not in given:
        return tuple(given), None
    demand(
        window is not None,
        "INVALID_ARGUMENT",
        "layer_types has sliding_attention, but use_sliding_window or sliding_window is not set",
    )
    return tuple(given), whole(raw, "sliding_window", 1, 1 << 24)


def _sliding_by_rule(
    raw: Mapping[str, Any], family: Family, num_layers: int, *, has_window: bool
) -> list[bool]:
    """Which layers slide where layer_types does not say."""
    if family.slides == "pattern":
        every = whole(raw, "sliding_window_pattern", 1, 1024)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    first = whole(raw, "max_window_layers", 0, 1 << 20, default=28)
    return [has_window and i >= first for i in range(num_layers)]


def _layers(
    raw: Mapping[str, Any], family: Family, layer_types: Sequence[str], *, is_sparse: Sequence[bool]
) -> tuple[LayerShape, ...]:
    sources = _kv_sources(raw, layer_types) if family.has_global_shapes else range(len(layer_types))
    is_wide = family.has_global_shapes and truth(raw, "use_double_wide_mlp")
    k_is_v = family.has_global_shapes and truth(raw, "attention_k_eq_v")
    width = whole(raw, "intermediate_size", 1, 1 << 20)
    shapes = []
    for i, (layer_type, source) in enumerate(zip(layer_types, sources, strict=True)):
        num_kv_heads, head_dim = _heads_of(raw, family, i, layer_type)
        shapes.append(
            LayerShape(
                layer_type=layer_type,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                intermediate_size=2 * width if is_wide and source != i else width,
                kv_source=source,
                has_v_proj=not (k_is_v and layer_type == "full_attention"),
                is_sparse=is_sparse[i],
            )
        )
    _demand_alike(shapes)
    return tuple(shapes)


def _demand_alike(shapes: Sequence[LayerShape]) -> None:
    """Layers of one type must have heads alike: they share masks and rotations."""
    seen: dict[str, tuple[int, int]] = {}
    for shape in shapes:
        heads = shape.num_kv_heads, shape.head_dim
        first = seen.setdefault(shape.layer_type, heads)
        demand(
            heads == first,
            "UNIMPLEMENTED",
            f"per_layer_config gives {shape.layer_type} layers {first} and {heads} as "
            "num_key_value_heads and head_dim, supported is one pair a type",
        )


def _heads_of(
    raw: Mapping[str, Any], family: Family, index: int, layer_type: str
) -> tuple[int, int]:
    """num_kv_heads and head_dim of a layer."""
    num_heads = whole(raw, "num_attention_heads", 1, 1024)
    own: Mapping[str, Any] = {}
    if family.has_global_shapes and "per_layer_config" in raw:
        own = table(table(raw, "per_layer_config"), str(index))
        unknown = sorted(set(own) - {"head_dim", "num_key_value_heads"})
        demand(not unknown, "UNIMPLEMENTED", f"per_layer_config sets {shortened(unknown)}")
    elif family.has_global_shapes and layer_type == "full_attention":
        own = {"head_dim": raw.get("global_head_dim")}
        if truth(raw, "attention_k_eq_v"):
            own = {**own, "num_key_value_heads": raw.get("num_global_key_value_heads")}
    given = {**raw, **{name: value for name, value in own.items() if value is not None}}
    hidden_size = whole(raw, "hidden_size", 1, 1 << 17)
    return _num_kv_heads(given, num_heads), _head_dim(given, hidden_size // num_heads)


def _num_kv_heads(raw: Mapping[str, Any], num_heads: int) -> int:
    num_kv_heads = whole(raw, "num_key_value_heads", 1, num_heads, default=num_heads)
    demand(
        num_heads % num_kv_heads == 0,
        "INVALID_ARGUMENT",
        f"num_key_value_heads is {num_kv_heads}, it must divide num_attention_heads {num_heads}",
    )
    return num_kv_heads


def _head_dim(raw: Mapping[str, Any], default: int) -> int:
    head_dim = whole(raw, "head_dim", 2, 1024, default=default)
    demand(head_dim % 2 == 0, "INVALID_ARGUMENT", f"head_dim is {head_dim}, it must be even")
    return head_dim


def _kv_sources(raw: Mapping[str, Any], layer_types: Sequence[str]) -> list[int]:
    """The layer whose K and V each layer reads: the last ones read an earlier one's of their type.

    After Gemma 4's num_kv_shared_layers.
    """
    num_layers = len(layer_types)
    first_shared = num_layers - whole(raw, "num_kv_shared_layers", 0, num_layers - 1, default=0)
    last_own = {layer_type: i for i, layer_type in enumerate(layer_types[:first_shared])}
    for layer_type in layer_types[first_shared:]:
        demand(
            layer_type in last_own,
            "INVALID_ARGUMENT",
            f"num_kv_shared_layers is {num_layers - first_shared}, "
            f"that leaves no {layer_type} layer with K and V of its own",
        )
    return [
        i if i < first_shared else last_own[layer_type] for i, layer_type in enumerate(layer_types)
    ]


def _experts(raw: Mapping[str, Any]) -> Experts:
    name = "num_experts" if raw.get("num_experts") is not None else "num_local_experts"
    count = whole(raw, name, 1, 1024, default=128)
    return Experts(
        count=count,
        num_chosen=whole(raw, "num_experts_per_tok", 1, count, default=8),
        intermediate_size=whole(raw, "moe_intermediate_size", 1, 1 << 20, default=768),
        normalizes=truth(raw, "norm_topk_prob"),
    )


def _sparse(raw: Mapping[str, Any], experts: Experts | None, num_layers: int) -> list[bool]:
    """Which layers have experts."""
    if experts is None:
        return [False] * num_layers
    # Published ones have up to 12,032; each is three weights with a name of its own.
    demand(
        experts.count * num_layers <= 1 << 16,
        "RESOURCE_EXHAUSTED",
        f"num_experts is {experts.count} in {num_layers} layers, the limit is {1 << 16} in all",
    )
    every = whole(raw, "decoder_sparse_step", 1, 1024, default=1)
    dense = raw.get("mlp_only_layers") or []
    demand(
        isinstance(dense, list),
        "INVALID_ARGUMENT",
        f"mlp_only_layers is {shortened(dense)}, it must be a list",
    )
    return [i not in dense and (i + 1) % every == 0 for i in range(num_layers)]


def _attention_scale(raw: Mapping[str, Any], family: Family) -> float | None:
    if family.has_global_shapes:
        return 1.0
    if "query_pre_attn_scalar" not in family.defaults:
        return None
    return float(number(raw, "query_pre_attn_scalar", 1e-6, 1e6) ** -0.5)


def _logit_cap(raw: Mapping[str, Any]) -> float | None:
    if raw.get("final_logit_softcapping") is None:
        return None
    return number(raw, "final_logit_softcapping", 1e-3, 1e6)


def _per_layer_input_size(raw: Mapping[str, Any], family: Family, vocab_size: int) -> int:
    if "hidden_size_per_layer_input" not in family.defaults:
        return 0
    size = whole(raw, "hidden_size_per_layer_input", 0, 1 << 16, default=0)
    if size:
        known = whole(raw, "vocab_size_per_layer_input", 2, 1 << 22)
        demand(
            known == vocab_size,
            "UNIMPLEMENTED",
            f"vocab_size_per_layer_input is {known}, supported is vocab_size {vocab_size}",
        )
    return size


def _eos_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    for each in listed:
        demand(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < vocab_size,
            "INVALID_ARGUMENT",
            f"eos_token_id is {shortened(each)}, it must be an id below vocab_size {vocab_size}",
        )
    return tuple(listed)


__all__ = ["LAYER_TYPES", "MODEL_TYPES", "Experts", "LayerShape", "ModelConfig", "read_config"]
