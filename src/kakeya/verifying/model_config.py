"""The shape of a decoder, out of its config.json: what is computed, and what is refused by name.

Pure: objects already parsed come in, a frozen ModelConfig goes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kakeya.errors import demand

MODEL_TYPES = ("llama", "qwen3")
LAYER_TYPES = ("full_attention", "sliding_attention")


# Field names that change what a model computes, with the only values that we compute.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "quantization_config": (None,),
    "logit_scale": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "num_experts": (None, 0),
    "embedding_multiplier": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "add_cross_attention": (None, False),
    "is_encoder_decoder": (None, False),
}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The rope scaling of Llama 3.1: long wavelengths divided by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder, in the words of its config.json where those are plain."""

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
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    has_tied_head: bool
    has_attention_bias: bool  # on q, k, v and o
    has_mlp_bias: bool
    has_qk_norm: bool
    layer_types: tuple[str, ...]
    sliding_window: int | None  # a sliding layer's row p attends to (p - sliding_window, p]
    eos_ids: tuple[int, ...]


def read_config(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The shape of the model that config.json describes; eos ids from generation_config.json."""
    model_type = raw.get("model_type")
    demand(
        model_type in MODEL_TYPES,
        "UNIMPLEMENTED",
        f"model_type is {model_type!r}, supported are {', '.join(MODEL_TYPES)}",
    )
    for name, allowed in _NEUTRAL.items():
        value = raw.get(name, allowed[0])
        demand(
            value in allowed,
            "UNIMPLEMENTED",
            f"{name} is {shortened(value)}, supported: {allowed[0]}",
        )
    hidden_size = _int(raw, "hidden_size", 1, 1 << 17)
    num_heads = _int(raw, "num_attention_heads", 1, 1024)
    num_kv_heads = _int(raw, "num_key_value_heads", 1, num_heads, default=num_heads)
    demand(
        num_heads % num_kv_heads == 0,
        "INVALID_ARGUMENT",
        f"num_key_value_heads is {num_kv_heads}, it must divide num_attention_heads {num_heads}",
    )
    default_head_dim = 128 if model_type == "qwen3" else hidden_size // num_heads
    head_dim = _int(raw, "head_dim", 2, 1024, default=default_head_dim)
    demand(head_dim % 2 == 0, "INVALID_ARGUMENT", f"head_dim is {head_dim}, it must be even")
    num_layers = _int(raw, "num_hidden_layers", 1, 1024)
    vocab_size = _int(raw, "vocab_size", 2, 1 << 22)
    theta, scaling = _rope(raw)
    layer_types, sliding_window = _layers(raw, str(model_type), num_layers)
    return ModelConfig(
        model_type=str(model_type),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_int(raw, "intermediate_size", 1, 1 << 20),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_context_len=_int(raw, "max_position_embeddings", 1, 1 << 24, default=2048),
        rms_norm_eps=_float(raw, "rms_norm_eps", 0.0, 1.0, default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        has_tied_head=_bool(raw, "tie_word_embeddings"),
        has_attention_bias=_bool(raw, "attention_bias"),
        has_mlp_bias=model_type == "llama" and _bool(raw, "mlp_bias"),
        has_qk_norm=model_type == "qwen3",
        layer_types=layer_types,
        sliding_window=sliding_window,
        eos_ids=_eos_ids(generation.get("eos_token_id", raw.get("eos_token_id")), vocab_size),
    )


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight the model must have, by its name in the checkpoint; matrices are [out, in]."""
    c = config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    h, m = c.hidden_size, c.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, h)}
    for i in range(c.num_layers):
        at = f"model.layers.{i}"
        linears = {
            f"{at}.self_attn.q_proj": ((q, h), c.has_attention_bias),
            f"{at}.self_attn.k_proj": ((kv, h), c.has_attention_bias),
            f"{at}.self_attn.v_proj": ((kv, h), c.has_attention_bias),
            f"{at}.self_attn.o_proj": ((h, q), c.has_attention_bias),
            f"{at}.mlp.gate_proj": ((m, h), c.has_mlp_bias),
            f"{at}.mlp.up_proj": ((m, h), c.has_mlp_bias),
            f"{at}.mlp.down_proj": ((h, m), c.has_mlp_bias),
        }
        for name, (shape, has_bias) in linears.items():
            shapes[f"{name}.weight"] = shape
            if has_bias:
                shapes[f"{name}.bias"] = shape[:1]
        shapes[f"{at}.input_layernorm.weight"] = (h,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (h,)
        if c.has_qk_norm:
            shapes[f"{at}.self_attn.q_norm.weight"] = (c.head_dim,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (c.head_dim,)
    shapes["model.norm.weight"] = (h,)
    if not c.has_tied_head:
        shapes["lm_head.weight"] = (c.vocab_size, h)
    return shapes


def _rope(raw: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling, from `rope_parameters` (new layout) or rope_theta and rope_scaling."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    demand(
        isinstance(nested, Mapping),
        "INVALID_ARGUMENT",
        f"rope_parameters is {shortened(nested)}, it must be an object",
    )
    flat = {"rope_theta": raw.get("rope_theta"), **nested}
    theta = _float(flat, "rope_theta", 1.0, 1e12, default=10_000.0)
    kind = nested.get("rope_type", nested.get("type", "default"))
    demand(
        kind in ("default", "llama3"),
        "UNIMPLEMENTED",
        f"rope_type is {shortened(kind)}, supported are default and llama3",
    )
    share = nested.get("partial_rotary_factor")
    demand(share in (None, 1), "UNIMPLEMENTED", f"partial_rotary_factor is {share}, supported is 1")
    if kind == "default":
        return theta, None
    original = "original_max_position_embeddings"
    scaling = Llama3Scaling(
        factor=_float(nested, "factor", 1.0, 1e6),
        low_freq_factor=_float(nested, "low_freq_factor", 1e-6, 1e6),
        high_freq_factor=_float(nested, "high_freq_factor", 1e-6, 1e6),
        original_max_len=_int(nested, original, 1, 1 << 24),
    )
    demand(
        scaling.high_freq_factor > scaling.low_freq_factor,
        "INVALID_ARGUMENT",
        f"high_freq_factor is {scaling.high_freq_factor}, "
        f"it must be above low_freq_factor {scaling.low_freq_factor}",
    )
    return theta, scaling


def _layers(
    raw: Mapping[str, Any], model_type: str, num_layers: int
) -> tuple[tuple[str, ...], int | None]:
    """One type per layer, and the window of the sliding ones (None where no layer slides)."""
    # Llama has no sliding layers: a stray sliding_window there changes nothing.
    is_sliding = model_type == "qwen3" and _bool(raw, "use_sliding_window")
    window = raw.get("sliding_window") if is_sliding else None
    given = raw.get("layer_types") if model_type == "qwen3" else None
    if given is None:
        first = _int(raw, "max_window_layers", 0, 1 << 20, default=28)
        given = [
            "sliding_attention" if window is not None and i >= first else "full_attention"
            for i in range(num_layers)
        ]
    demand(
        isinstance(given, list) and len(given) == num_layers,
        "INVALID_ARGUMENT",
        f"layer_types must list one type for each of the {num_layers} layers",
    )
    for kind in given:
        demand(
            kind in LAYER_TYPES,
            "UNIMPLEMENTED",
            f"layer_types has {shortened(kind)}, supported are {', '.join(LAYER_TYPES)}",
        )
    if "sliding_attention" not in given:
        return tuple(given), None
    demand(
        window is not None,
        "INVALID_ARGUMENT",
        "layer_types has sliding_attention, but use_sliding_window or sliding_window is not set",
    )
    return tuple(given), _int(raw, "sliding_window", 1, 1 << 24)


def _eos_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    for each in listed:
        demand(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < vocab_size,
            "INVALID_ARGUMENT",
            f"eos_token_id is {shortened(each)}, it must be an id below vocab_size {vocab_size}",
        )
    return tuple(listed)


def _int(
    raw: Mapping[str, Any], name: str, low: int, high: int, *, default: int | None = None
) -> int:
    value = raw.get(name)
    value = default if value is None else value
    demand(
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, it must be a whole number from {low} to {high}",
    )
    assert isinstance(value, int)
    return value


def _float(
    raw: Mapping[str, Any], name: str, low: float, high: float, *, default: float | None = None
) -> float:
    value = raw.get(name)
    value = default if value is None else value
    demand(
        isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high,
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, it must be a number from {low:g} to {high:g}",
    )
    assert isinstance(value, (int, float))
    return float(value)


def _bool(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name, False)
    value = False if value is None else value
    demand(
        isinstance(value, bool),
        "INVALID_ARGUMENT",
        f"{name} is {shortened(value)}, not true or false",
    )
    return bool(value)


def shortened(value: Any) -> str:
    """A value of a stranger's file, cut to what fits in a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
