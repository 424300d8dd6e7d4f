"""Rotary position embeddings in MLX: angles of positions, and the turn itself."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Turn:
    """How rows are turned by their positions.  The first half of sin is negated.

    cos, sin: [..., T, 1, head_dim].
    """

    cos: mx.array
    sin: mx.array


def turn_of(positions: NDArray[np.integer], inv_freq: NDArray[np.float32], dtype: mx.Dtype) -> Turn:
    """The turn of rows at these positions: [..., T] of any number type."""
    angles = positions.astype(np.float32)[..., None, None] * inv_freq
    cos, sin = np.cos(angles), np.sin(angles)
    halves = np.concatenate((cos, cos), -1), np.concatenate((-sin, sin), -1)
    return Turn(mx.array(halves[0]).astype(dtype), mx.array(halves[1]).astype(dtype))


def rotate(heads: mx.array, turn: Turn) -> mx.array:
    """heads: [..., T, heads, head_dim], turned; dimension i pairs with i + head_dim / 2 (as HF)."""
    half = heads.shape[-1] // 2
    swapped = mx.concatenate([heads[..., half:], heads[..., :half]], -1)
    return heads * turn.cos + swapped * turn.sin
