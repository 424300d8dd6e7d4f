"""One decoder layer in plain MLX calls, and what the layers of a forward pass share.

One function per part, no module tree.  Which parts a layer has is what its weights and its shape
say; the names of architectures are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from kakeya.verifying.kv_mlx import MlxKv, write
from kakeya.verifying.model_config import Experts, ModelConfig
from kakeya.verifying.slots import Placement
from kakeya.verifying.weights_mlx import (
    LayerWeights,
    Mlp,
    Norm,
    PerLayerEmbedding,
    PerLayerInput,
    SparseMlp,
)


@dataclass(frozen=True, slots=True)
class TypePass:
    """What all layers of one type share in one forward pass."""

    cos: mx.array  # [T, num_heads + 2 * num_kv_heads, head_dim]; 1 at V's heads
    sin: mx.array  # the same shape, first halves negated; 0 at V's heads
    placement: Placement
    mask: mx.array  # [T, num_slots], True where a row may look


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share."""

    types: dict[str, TypePass]  # by layer type
    per_layer_input: mx.array | None  # [T, num_layers, per_layer_input_size]


def run_layer(
    config: ModelConfig,
    weights: LayerWeights,
    x: mx.array,
    kv: MlxKv,
    index: int,
    shared: Pass,
    *,
    kv_only: bool,
) -> mx.array:
    """Decoder layer `index` over x: [T, hidden_size]; writes its K and V first."""
    shape = config.layers[index]
    here = shared.types[shape.layer_type]
    heads = layer_heads(config, weights, x, index, here)
    if shape.kv_source == index:
        write(kv.slabs[index], heads[:, config.num_heads :].swapaxes(0, 1), here.placement)
    if kv_only:
        return x
    k, v = kv.readable(index, here.placement.num_slots)
    scale = config.attention_scale or shape.head_dim**-0.5
    mixed = attend(heads[:, : config.num_heads], k, v, here.mask, scale)
    x = _added(weights.out(mixed), weights.out_norm, x)
    inner = rms_norm(x, weights.mlp_norm)
    if isinstance(weights.mlp, SparseMlp):
        assert config.experts is not None
        out = _sparse(inner, weights.mlp, config.experts, _ACTIVATIONS[config.activation])
    else:
        out = _gated(inner, weights.mlp, _ACTIVATIONS[config.activation])
    x = _added(out, weights.mlp_out_norm, x)
    if weights.per_layer_input is not None:
        assert shared.per_layer_input is not None
        x = _with_own_input(config, weights.per_layer_input, x, shared.per_layer_input[:, index])
    return x if weights.scalar is None else x * weights.scalar


def attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array, scale: float) -> mx.array:
    """[T, num_heads * head_dim]: each row's mix of the values it may look at.

    q: [T, num_heads, head_dim], rotated.  k, v: [1, num_kv_heads, num_slots, head_dim].
    """
    T, num_heads, head_dim = q.shape
    mixed = mx.fast.scaled_dot_product_attention(
        q.swapaxes(0, 1)[None], k, v, scale=scale, mask=mask
    )
    return mixed[0].swapaxes(0, 1).reshape(T, num_heads * head_dim)


def per_layer_inputs(
    config: ModelConfig, weights: PerLayerEmbedding, ids: mx.array, embedded: mx.array
) -> mx.array:
    """[T, num_layers, per_layer_input_size]: the tokens' own part, and their embedding's.

    embedded: [T, hidden_size], scaled.
    """
    size = config.per_layer_input_size
    shape = (ids.shape[0], config.num_layers, size)
    own = weights.embedding.rows(ids) * mx.array(size**0.5, dtype=embedded.dtype)
    projected = weights.projection(embedded) * config.hidden_size**-0.5
    both = rms_norm(projected.reshape(shape), weights.norm) + own.reshape(shape)
    return both * math.sqrt(0.5)


def rms_norm(x: mx.array, norm: Norm) -> mx.array:
    """x over its root mean square on the last axis, times the weight; in float32 throughout."""
    wide = x.astype(mx.float32)
    if norm.weight.ndim == 1:
        return mx.fast.rms_norm(wide, norm.weight, norm.eps).astype(x.dtype)
    return (mx.fast.rms_norm(wide, None, norm.eps) * norm.weight).astype(x.dtype)


def layer_heads(
    config: ModelConfig, weights: LayerWeights, x: mx.array, index: int, here: TypePass
) -> mx.array:
    """[T, heads, head_dim], normed and rotated: q's, then K's and V's where it has its own."""
    shape = config.layers[index]
    heads = weights.qkv(rms_norm(x, weights.input_norm)).reshape(len(x), -1, shape.head_dim)
    if shape.kv_source == index and not shape.has_v_proj:
        heads = mx.concatenate([heads, heads[:, config.num_heads :]], axis=1)
    norm = weights.head_norm
    if norm is not None and len(norm.weight) == heads.shape[1]:
        heads = rms_norm(heads, norm)
    elif norm is not None:
        num_normed = len(norm.weight)
        normed = rms_norm(heads[:, :num_normed], norm)
        heads = mx.concatenate([normed, heads[:, num_normed:]], axis=1)
    return _rotate(heads, here.cos[:, : heads.shape[1]], here.sin[:, : heads.shape[1]])


def kv_heads(
    config: ModelConfig,
    weights: LayerWeights,
    k: mx.array,
    v: mx.array,
    cos: mx.array,
    sin: mx.array,
) -> mx.array:
    """[T, 2 * num_kv_heads, head_dim]: K and V as the layer keeps them, from before their norms.

    k, v: [T, num_kv_heads, head_dim].  cos, sin: [T, 1, head_dim], of k's positions.
    """
    norm, num_kv_heads = weights.head_norm, k.shape[1]
    if norm is not None:
        # Its rows are q's heads, then K's, then V's where those are normed as well.
        of_k = norm.weight[config.num_heads : config.num_heads + num_kv_heads]
        of_v = norm.weight[config.num_heads + num_kv_heads :]
        k = rms_norm(k, Norm(of_k, norm.eps))
        v = rms_norm(v, Norm(of_v, norm.eps)) if len(of_v) else v
    return mx.concatenate([_rotate(k, cos, sin), v], axis=1)


def _rotate(heads: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """heads: [T, heads, head_dim], turned by its row's position; the pairs are halves."""
    half = heads.shape[-1] // 2
    swapped = mx.concatenate([heads[..., half:], heads[..., :half]], axis=-1)
    return heads * cos + swapped * sin


def _added(out: mx.array, norm: Norm | None, x: mx.array) -> mx.array:
    """x + out, out normed first where the layer does so."""
    return (out if norm is None else rms_norm(out, norm)) + x


def _gated(x: mx.array, mlp: Mlp, activation: Callable[[mx.array], mx.array]) -> mx.array:
    gate_up = mlp.gate_up(x)
    width = gate_up.shape[1] // 2
    return mlp.down(activation(gate_up[:, :width]) * gate_up[:, width:])


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _gelu_tanh(x: mx.array) -> mx.array:
    """The tanh form of GELU, in float32."""
    wide = x.astype(mx.float32)
    inner = (wide * wide * wide * 0.044715 + wide) * (2 / math.pi) ** 0.5
    return ((mx.tanh(inner) + 1.0) * wide * 0.5).astype(x.dtype)


_ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def _sparse(
    x: mx.array, mlp: SparseMlp, experts: Experts, activation: Callable[[mx.array], mx.array]
) -> mx.array:
    """Each row through its likeliest experts, added up in the experts' order.

    The order and the products do not depend on the rows beside it, so a row stays exact.
    """
    chances = mx.softmax(mlp.router(x).astype(mx.float32), axis=-1)
    chosen = mx.argsort(-chances, axis=-1)[:, : experts.num_chosen]
    shares = mx.take_along_axis(chances, chosen, axis=-1)
    if experts.normalizes:
        shares = shares / shares.sum(axis=-1, keepdims=True)
    shares = shares.astype(x.dtype)
    places_of = np.array(chosen)
    out = mx.zeros_like(x)
    for expert in np.unique(places_of).tolist():
        rows, places = (mx.array(each) for each in np.nonzero(places_of == expert))
        part = _gated(x[rows], mlp.experts[expert], activation)
        out = out.at[rows].add(part * shares[rows, places][:, None])
    return out


def _with_own_input(
    config: ModelConfig, weights: PerLayerInput, x: mx.array, own: mx.array
) -> mx.array:
    """own: [T, per_layer_input_size], this layer's part."""
    gate = _ACTIVATIONS[config.activation](weights.gate(x)) * own
    return rms_norm(weights.projection(gate), weights.norm) + x
