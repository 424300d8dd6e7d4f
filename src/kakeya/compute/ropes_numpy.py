"""Rotary position embeddings in numpy: the frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kakeya.compute.ropes import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    """Angle per position of each pair of dimensions: [head_dim / 2], float32.

    Llama 3's scaling divides wavelengths longer than the original context by `factor`, keeps
    those much shorter, and blends between (Llama 3.1 model card).
    """
    steps = np.arange(0, head_dim, 2, dtype=np.float32)
    inv_freq = (1.0 / (np.float32(rope.theta) ** (steps / np.float32(head_dim)))).astype(np.float32)
    inv_freq[int(rope.rotated_share * head_dim // 2) :] = 0.0
    scaling = rope.llama3
    if scaling is None:
        return inv_freq / np.float32(rope.factor)
    wave_len = 2 * np.pi / inv_freq
    turns = scaling.original_max_len / wave_len
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended = (1 - kept_share) * inv_freq / scaling.factor + kept_share * inv_freq
    long, short = wave_len > scaling.original_max_len / low, turns > high
    scaled = np.where(long, inv_freq / scaling.factor, np.where(short, inv_freq, blended))
    return scaled.astype(np.float32)
