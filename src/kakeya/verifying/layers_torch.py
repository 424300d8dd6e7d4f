"""One decoder layer in plain torch calls, and what the layers of a forward pass share.

One function per part, no module tree.  Which parts a layer has is what its weights and its shape
say; the names of architectures are not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.verifying.attention_torch import Queries, attend
from kakeya.verifying.kv_torch import TorchKv, write
from kakeya.verifying.model_config import Experts, ModelConfig
from kakeya.verifying.slots import Placement
from kakeya.verifying.weights_torch import (
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

    cos: Tensor  # [T, num_heads + 2 * num_kv_heads, head_dim]; 1 at V's heads
    sin: Tensor  # the same shape, first halves negated; 0 at V's heads
    placement: Placement
    queries: Queries


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share."""

    types: dict[str, TypePass]  # by layer type
    per_layer_input: Tensor | None  # [T, num_layers, per_layer_input_size]


def run_layer(
    config: ModelConfig,
    weights: LayerWeights,
    x: Tensor,
    kv: TorchKv,
    index: int,
    shared: Pass,
    *,
    kv_only: bool,
) -> Tensor:
    """Decoder layer `index` over x: [T, hidden_size]; writes its K and V first."""
    shape = config.layers[index]
    here = shared.types[shape.layer_type]
    heads = layer_heads(config, weights, x, index, here.cos, here.sin)
    if shape.kv_source == index:
        write(kv.slabs[index], heads[:, config.num_heads :].transpose(0, 1), here.placement)
    if kv_only:
        return x
    k, v = kv.readable(index, here.placement.num_slots)
    mixed = attend(heads[:, : config.num_heads], k, v, here.queries, config.attention_scale)
    return after_attention(config, weights, x, mixed, index, shared.per_layer_input)


def after_attention(
    config: ModelConfig,
    weights: LayerWeights,
    x: Tensor,
    mixed: Tensor,
    index: int,
    per_layer_input: Tensor | None,
) -> Tensor:
    """What layer `index` puts out: x [T, hidden_size] went in, `mixed` is what it attended to.

    mixed: [T, num_heads * head_dim].  per_layer_input: [T, num_layers, per_layer_input_size].
    """
    x = _added(weights.out(mixed), weights.out_norm, x)
    inner = rms_norm(x, weights.mlp_norm)
    if isinstance(weights.mlp, SparseMlp):
        assert config.experts is not None
        out = _sparse(inner, weights.mlp, config.experts, _ACTIVATIONS[config.activation])
    else:
        out = _gated(inner, weights.mlp, _ACTIVATIONS[config.activation])
    x = _added(out, weights.mlp_out_norm, x)
    if weights.per_layer_input is not None:
        assert per_layer_input is not None
        x = _with_own_input(config, weights.per_layer_input, x, per_layer_input[:, index])
    return x if weights.scalar is None else x.mul_(weights.scalar)


def per_layer_inputs(
    config: ModelConfig, weights: PerLayerEmbedding, ids: Tensor, embedded: Tensor
) -> Tensor:
    """[T, num_layers, per_layer_input_size]: the tokens' own part, and their embedding's.

    embedded: [T, hidden_size], scaled.
    """
    size = config.per_layer_input_size
    shape = (len(ids), config.num_layers, size)
    own = weights.embedding[ids] * torch.tensor(size**0.5, dtype=embedded.dtype)
    projected = weights.projection(embedded) * config.hidden_size**-0.5
    both: Tensor = rms_norm(projected.view(shape), weights.norm) + own.view(shape)
    return both.mul_(2.0**-0.5)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x over its root mean square on the last axis, times the weight; in float32 throughout."""
    wide = x if x.dtype == torch.float32 else x.to(torch.float32)
    scale = (wide * wide).sum(-1, keepdim=True).add_(norm.eps).rsqrt_()
    out = (wide * scale).mul_(norm.weight)
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def layer_heads(
    config: ModelConfig, weights: LayerWeights, x: Tensor, index: int, cos: Tensor, sin: Tensor
) -> Tensor:
    """[T, heads, head_dim], normed and rotated: q's, then K's and V's where it has its own.

    cos, sin: [T, num_heads + 2 * num_kv_heads, head_dim], as in TypePass.
    """
    shape = config.layers[index]
    heads = weights.qkv(rms_norm(x, weights.input_norm)).view(len(x), -1, shape.head_dim)
    if shape.kv_source == index and not shape.has_v_proj:
        heads = torch.cat((heads, heads[:, config.num_heads :]), 1)
    norm = weights.head_norm
    if norm is not None and len(norm.weight) == heads.shape[1]:
        heads = rms_norm(heads, norm)
    elif norm is not None:
        num_normed = len(norm.weight)
        heads = torch.cat((rms_norm(heads[:, :num_normed], norm), heads[:, num_normed:]), 1)
    return _rotate(heads, cos[:, : heads.shape[1]], sin[:, : heads.shape[1]])


def kv_heads(
    config: ModelConfig, weights: LayerWeights, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
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
    return torch.cat((_rotate(k, cos, sin), v), 1)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """heads: [T, heads, head_dim], turned by its row's position; the pairs are halves."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return (heads * cos).addcmul_(swapped, sin)


def _added(out: Tensor, norm: Norm | None, x: Tensor) -> Tensor:
    """x + out, out normed first where the layer does so.  `out` may be overwritten."""
    return (out if norm is None else rms_norm(out, norm)).add_(x)


def _gated(x: Tensor, mlp: Mlp, activation: Callable[[Tensor], Tensor]) -> Tensor:
    gate_up = mlp.gate_up(x)
    width = gate_up.shape[1] // 2
    return mlp.down(activation(gate_up[:, :width]).mul_(gate_up[:, width:]))


def _gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form of GELU, part by part: torch's own computes the ends of a piece of memory
    another way than its middle, so that a row would depend on the rows beside it."""
    wide = x.to(torch.float32)
    inner = (wide * wide * wide).mul_(0.044715).add_(wide).mul_((2 / math.pi) ** 0.5)
    return inner.tanh_().add_(1.0).mul_(wide).mul_(0.5).to(x.dtype)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu_tanh": _gelu_tanh}


def _sparse(
    x: Tensor, mlp: SparseMlp, experts: Experts, activation: Callable[[Tensor], Tensor]
) -> Tensor:
    """Each row through its likeliest experts, added up in the experts' order.

    The order and the products do not depend on the rows beside it, so a row stays exact.
    """
    chances = F.softmax(mlp.router(x), dim=-1, dtype=torch.float32)
    shares, chosen = torch.topk(chances, experts.num_chosen, dim=-1)
    if experts.normalizes:
        shares = shares / shares.sum(-1, keepdim=True)
    shares = shares.to(x.dtype)
    out = torch.zeros_like(x)
    for expert in torch.unique(chosen).tolist():
        rows, places = torch.where(chosen == expert)
        part = _gated(x[rows], mlp.experts[expert], activation)
        out.index_add_(0, rows, part * shares[rows, places, None])
    return out


def _with_own_input(config: ModelConfig, weights: PerLayerInput, x: Tensor, own: Tensor) -> Tensor:
    """own: [T, per_layer_input_size], this layer's part."""
    gate = _ACTIVATIONS[config.activation](weights.gate(x)).mul_(own)
    return rms_norm(weights.projection(gate), weights.norm).add_(x)
