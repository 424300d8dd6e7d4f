"""What the name of an architecture says beyond the fields of its config.json.

A family is data: the forward pass knows none of these names, it goes by what they set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Activation = Literal["silu", "gelu_tanh"]
# Which heads are RMS-normed before the rotation: none, q and k, or V's too (without a weight).
NormedHeads = Literal["none", "qk", "qkv"]

# Field names that change what a model computes, with the only values that we compute.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "logit_scale": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "embedding_multiplier": (None, 1, 1.0),
    "residual_multiplier": (None, 1, 1.0),
    "add_cross_attention": (None, False),
    "is_encoder_decoder": (None, False),
}


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture.

    defaults: what an absent field of config.json means.  fixed: further fields with the only
    values we compute.  computes: fields of NEUTRAL that this family may set.  ropes: the rope of
    each type of layer where nothing is said; empty: one rope for all.
    slides: whether layers may slide: never, when use_sliding_window says so, or by a pattern.
    norm_offset: added to every norm weight as stored.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    computes: frozenset[str] = frozenset()
    ropes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    slides: Literal["never", "told", "pattern"] = "never"
    activation: Activation = "silu"
    norm_offset: float = 0.0
    normed_heads: NormedHeads = "none"
    has_mlp_bias: bool = False
    has_post_norms: bool = False
    scales_embedding: bool = False
    has_layer_scalar: bool = False
    has_global_shapes: bool = False  # full layers have heads of their own, later ones no K and V


_SILU = {"hidden_act": ("silu",)}
_GELU = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (None, False, "vision"),
}
_GEMMA = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "sliding_window_pattern": 6,
}

FAMILIES: dict[str, Family] = {
    "llama": Family(fixed=_SILU, has_mlp_bias=True),
    "qwen3": Family(defaults={"head_dim": 128}, fixed=_SILU, slides="told", normed_heads="qk"),
    "qwen3_moe": Family(
        fixed={**_SILU, "use_sliding_window": (None, False)},
        computes=frozenset({"num_experts", "num_local_experts"}),
        normed_heads="qk",
    ),
    "gemma3_text": Family(
        defaults={
            **_GEMMA,
            "vocab_size": 262_208,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        fixed=_GELU,
        computes=frozenset({"final_logit_softcapping"}),
        ropes={
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {"rope_theta": 1_000_000.0},
        },
        slides="pattern",
        activation="gelu_tanh",
        norm_offset=1.0,
        normed_heads="qk",
        has_post_norms=True,
        scales_embedding=True,
    ),
    "gemma4_text": Family(
        defaults={
            **_GEMMA,
            "vocab_size": 262_144,
            "vocab_size_per_layer_input": 262_144,
            "hidden_size_per_layer_input": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
        },
        fixed={**_GELU, "enable_moe_block": (None, False)},
        computes=frozenset({"final_logit_softcapping"}),
        ropes={
            "sliding_attention": {"rope_theta": 10_000.0},
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
        },
        slides="pattern",
        activation="gelu_tanh",
        normed_heads="qkv",
        has_post_norms=True,
        scales_embedding=True,
        has_layer_scalar=True,
        has_global_shapes=True,
    ),
}
# Models of text and images: their text part is computed, the rest is not read.
TEXT_PARTS = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}
MODEL_TYPES = (*FAMILIES, *TEXT_PARTS)
