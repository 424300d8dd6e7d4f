"""The weights a model must have, by their names in its checkpoint, with their shapes.

MLX's quantised layout keeps a matrix N.weight as packed bits, with N.scales and N.biases.

Pure.  Names are those of a text model ("model.layers.0…"); models of text and images keep the
same ones behind another prefix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kakeya.compute.quantized import Quantized
from kakeya.errors import demand
from kakeya.verifying.model_config import LayerShape, ModelConfig

Shapes = Iterator[tuple[str, tuple[int, ...]]]

# Where the text model's weights lie: by itself, and inside a model of text and images (in the
# layout of transformers 5, and in the one before).
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")

QUANTIZED_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight the model must have; matrices are [out, in]."""
    return dict(_all(config))


def stored_prefix(names: Collection[str]) -> str:
    """What stands in these names for the "model." of weight_shapes."""
    for prefix in _PREFIXES:
        if f"{prefix}embed_tokens.weight" in names:
            return prefix
    return _PREFIXES[0]


def part_name(name: str, part: str) -> str:
    """`….weight` → `….scales` or `….biases`."""
    return f"{name.removesuffix('weight')}{part}"


def packing(
    name: str, wanted: tuple[int, ...], packed: tuple[int, ...], scales: tuple[int, ...]
) -> Quantized:
    """Bits and group size of a matrix whose parts have these shapes.  Raises Refused."""
    is_matrix = len(wanted) == len(packed) == len(scales) == 2
    bits = 32 * packed[1] / wanted[1] if is_matrix else 0
    group_size = wanted[1] / scales[1] if is_matrix and scales[1] else 0
    demand(
        bits in QUANTIZED_BITS
        and group_size in GROUP_SIZES
        and packed[0] == scales[0] == wanted[0],
        "INVALID_ARGUMENT",
        f"the weight {name} is packed as {list(packed)} with scales {list(scales)}, "
        f"config.json says {list(wanted)}",
    )
    return Quantized(int(bits), int(group_size))


def mlp_norm_name(config: ModelConfig) -> str:
    """The norm in front of the MLP: Llama's word for it means another norm elsewhere."""
    return "pre_feedforward_layernorm" if config.has_post_norms else "post_attention_layernorm"


def _all(c: ModelConfig) -> Shapes:
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for i, shape in enumerate(c.layers):
        at = f"model.layers.{i}"
        yield from _attention(c, shape, f"{at}.self_attn", is_source=shape.kv_source == i)
        yield from _mlp(c, shape, f"{at}.mlp")
        yield from _norms(c, at)
        if c.per_layer_input_size:
            yield f"{at}.per_layer_input_gate.weight", (c.per_layer_input_size, c.hidden_size)
            yield f"{at}.per_layer_projection.weight", (c.hidden_size, c.per_layer_input_size)
            yield f"{at}.post_per_layer_input_norm.weight", (c.hidden_size,)
    yield "model.norm.weight", (c.hidden_size,)
    if c.per_layer_input_size:
        total = c.num_layers * c.per_layer_input_size
        yield "model.embed_tokens_per_layer.weight", (c.vocab_size, total)
        yield "model.per_layer_model_projection.weight", (total, c.hidden_size)
        yield "model.per_layer_projection_norm.weight", (c.per_layer_input_size,)
    if not c.has_tied_head:
        yield "lm_head.weight", (c.vocab_size, c.hidden_size)


def _attention(c: ModelConfig, shape: LayerShape, at: str, *, is_source: bool) -> Shapes:
    h, q = c.hidden_size, c.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    yield from _linear(f"{at}.q_proj", (q, h), c.has_attention_bias)
    yield from _linear(f"{at}.o_proj", (h, q), c.has_attention_bias)
    if is_source:
        yield from _linear(f"{at}.k_proj", (kv, h), c.has_attention_bias)
    if is_source and shape.has_v_proj:
        yield from _linear(f"{at}.v_proj", (kv, h), c.has_attention_bias)
    if c.normed_heads != "none":
        yield f"{at}.q_norm.weight", (shape.head_dim,)
    if c.normed_heads != "none" and is_source:
        yield f"{at}.k_norm.weight", (shape.head_dim,)


def _mlp(c: ModelConfig, shape: LayerShape, at: str) -> Shapes:
    if not shape.is_sparse:
        yield from _gated(at, c.hidden_size, shape.intermediate_size, c.has_mlp_bias)
        return
    assert c.experts is not None
    yield f"{at}.gate.weight", (c.experts.count, c.hidden_size)
    for i in range(c.experts.count):
        yield from _gated(f"{at}.experts.{i}", c.hidden_size, c.experts.intermediate_size, False)


def _gated(at: str, hidden_size: int, width: int, has_bias: bool) -> Shapes:
    yield from _linear(f"{at}.gate_proj", (width, hidden_size), has_bias)
    yield from _linear(f"{at}.up_proj", (width, hidden_size), has_bias)
    yield from _linear(f"{at}.down_proj", (hidden_size, width), has_bias)


def _norms(c: ModelConfig, at: str) -> Shapes:
    names = ["input_layernorm", "post_attention_layernorm"]
    if c.has_post_norms:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in names:
        yield f"{at}.{name}.weight", (c.hidden_size,)
    if c.has_layer_scalar:
        yield f"{at}.layer_scalar", (1,)


def _linear(name: str, shape: tuple[int, int], has_bias: bool) -> Shapes:
    yield f"{name}.weight", shape
    if has_bias:
        yield f"{name}.bias", shape[:1]
