"""Rotary position embeddings in torch: frequencies, angles of positions, and the turn itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kakeya.compute.ropes import Rope


@dataclass(frozen=True, slots=True)
class Turn:
    """How rows are turned by their positions.  The first half of sin is negated.

    cos, sin: [..., T, 1, head_dim].
    """

    cos: Tensor
    sin: Tensor


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions: [head_dim / 2], float32.

    Llama 3's scaling divides wavelengths longer than the original context by `factor`, keeps
    those much shorter, and blends between (Llama 3.1 model card).
    """
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32)
    inv_freq = 1.0 / (rope.theta ** (steps / head_dim))
    scaling = rope.llama3
    if scaling is None:
        is_turned = torch.arange(head_dim // 2) < rope.rotated_share * head_dim / 2
        return torch.where(is_turned, inv_freq / rope.factor, 0.0)
    wave_len = 2 * torch.pi / inv_freq
    turns = scaling.original_max_len / wave_len
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    blended = (1 - kept_share) * inv_freq / scaling.factor + kept_share * inv_freq
    long, short = wave_len > scaling.original_max_len / low, turns > high
    return torch.where(long, inv_freq / scaling.factor, torch.where(short, inv_freq, blended))


def turn_of(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> Turn:
    """The turn of rows at these positions: [..., T] of any number type."""
    angles = positions.to(torch.float32)[..., None, None] * inv_freq
    cos, sin = angles.cos(), angles.sin()
    return Turn(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))


def rotate(heads: Tensor, turn: Turn) -> Tensor:
    """heads: [..., T, heads, head_dim], turned; dimension i pairs with i + head_dim / 2 (as HF)."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return heads * turn.cos + swapped * turn.sin
