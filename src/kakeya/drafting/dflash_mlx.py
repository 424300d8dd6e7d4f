"""A DFlash drafter's forward pass in plain MLX calls: context in, hidden states of a block out.

Nothing here writes in place; what is computed is only described, until somebody evaluates it.
Leading axes are free: [..., T, n] is rows of one block, or blocks of many sequences.

After DFlash: Block Diffusion for Flash Speculative Decoding (arXiv 2602.06036).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from kakeya.compute.ropes_mlx import Turn, rotate
from kakeya.drafting.dflash2_mlx import finish, prepare, split
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_weights_mlx import DflashWeights, LayerWeights


@dataclass(frozen=True, slots=True, eq=False)
class ContextRows:
    """What all layers see of the context's rows, before their positions count.

    k: [..., T, num_layers, num_kv_heads, head_dim], normed, not rotated.  v: the same shape.
    """

    k: mx.array
    v: mx.array


# (layer, q, k, v) → [..., T, num_heads * head_dim]: what each row of the block takes from the
# context and the block.  q: [..., T, num_heads, head_dim]; k, v: [..., T, num_kv_heads, head_dim];
# q and k are rotated.
Attend = Callable[[int, mx.array, mx.array, mx.array], mx.array]


def context_features(config: DflashConfig, weights: DflashWeights, aux: mx.array) -> mx.array:
    """[..., T, hidden_size] of aux [..., T, num_aux * hidden_size], layers in config's order."""
    return rms_norm(weights.fc(aux), weights.hidden_norm, config.rms_norm_eps)


def context_rows(config: DflashConfig, weights: DflashWeights, features: mx.array) -> ContextRows:
    """Every layer's K and V of the context: features [..., T, hidden_size], one product."""
    c = config
    heads = split(weights.context_kv(features), c.num_layers, 2 * c.num_kv_heads, c.head_dim)
    k, v = heads[..., : c.num_kv_heads, :], heads[..., c.num_kv_heads :, :]
    return ContextRows(rms_norm(k, weights.context_k_norm, c.rms_norm_eps), v)


def rotated(rows: ContextRows, turn: Turn) -> mx.array:
    """K at its positions: [..., T, num_layers, num_kv_heads, head_dim]."""
    per_layer = Turn(mx.expand_dims(turn.cos, -3), mx.expand_dims(turn.sin, -3))
    return rotate(rows.k, per_layer)


def embed(config: DflashConfig, weights: DflashWeights, ids: mx.array) -> mx.array:
    """ids: [..., T] → [..., T, hidden_size]."""
    rows = weights.embedding[ids]
    return rows if config.embedding_scale == 1.0 else rows * config.embedding_scale


def block_hidden(
    config: DflashConfig,
    weights: DflashWeights,
    x: mx.array,
    turn: Turn,
    attend: Attend,
    lens: Sequence[int] = (),
) -> mx.array:
    """The last hidden states of a block: x [..., T, hidden_size] is its embedded ids.

    Row 0 is the bonus; row i says what stands at its own position, where a mask went in.
    lens: x [T, hidden_size] holds blocks of these lengths, one behind the other.
    """
    for index, layer in enumerate(weights.layers):
        x = _layer(config, layer, index, x, turn, attend, lens)
    return rms_norm(x, weights.norm, config.rms_norm_eps)


def logits_of(config: DflashConfig, weights: DflashWeights, hidden: mx.array) -> mx.array:
    """[..., T, rows of the head] for hidden [..., T, hidden_size]."""
    logits = weights.head(hidden)
    if config.output_multiplier != 1.0:
        logits = logits * config.output_multiplier
    if config.logit_cap is not None:
        logits = mx.tanh(logits / config.logit_cap) * config.logit_cap
    return logits


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x over its root mean square on the last axis, times the weight (which may be per head)."""
    if weight.ndim == 1:
        return mx.fast.rms_norm(x, weight, eps)
    return mx.fast.rms_norm(x, None, eps) * weight


def _layer(
    config: DflashConfig,
    weights: LayerWeights,
    index: int,
    x: mx.array,
    turn: Turn,
    attend: Attend,
    lens: Sequence[int],
) -> mx.array:
    """One layer over x: [..., T, hidden_size]; DFlash 2 mixes rows before and after each part."""
    h = rms_norm(x, weights.input_norm, config.rms_norm_eps)
    if weights.attention_conv is None:
        x = x + _attention(config, weights, index, h, turn, attend)
    else:
        h, kernel = prepare(config, weights.attention_conv, h, lens)
        h = _attention(config, weights, index, h, turn, attend)
        x = x + finish(config, weights.attention_conv, h, kernel, lens)
    h = rms_norm(x, weights.mlp_norm, config.rms_norm_eps)
    if weights.mlp_conv is None:
        return x + _mlp(config, weights, h)
    h, kernel = prepare(config, weights.mlp_conv, h, lens)
    return x + finish(config, weights.mlp_conv, _mlp(config, weights, h), kernel, lens)


def _attention(
    config: DflashConfig,
    weights: LayerWeights,
    index: int,
    h: mx.array,
    turn: Turn,
    attend: Attend,
) -> mx.array:
    c = config
    num_rotated = c.num_heads + c.num_kv_heads
    qkv = split(weights.qkv(h), num_rotated + c.num_kv_heads, c.head_dim)
    qk = rms_norm(qkv[..., :num_rotated, :], weights.qk_norm, c.rms_norm_eps)
    qk = rotate(qk, turn)
    q, k = qk[..., : c.num_heads, :], qk[..., c.num_heads :, :]
    return weights.out(attend(index, q, k, qkv[..., num_rotated:, :]))


def _mlp(config: DflashConfig, weights: LayerWeights, h: mx.array) -> mx.array:
    gate_up = weights.gate_up(h)
    gate, up = gate_up[..., : config.intermediate_size], gate_up[..., config.intermediate_size :]
    return weights.down(gate * mx.sigmoid(gate) * up)


__all__ = [
    "Attend",
    "ContextRows",
    "block_hidden",
    "context_features",
    "context_rows",
    "embed",
    "logits_of",
    "rms_norm",
    "rotated",
]
