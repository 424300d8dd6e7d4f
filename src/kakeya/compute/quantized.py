"""MLX's quantised layout of a matrix, in words that need no tensor framework."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantized:
    """How a matrix [out, in] is packed: rows of uint32, and one scale and bias a group of inputs.

    A weight is scale * packed + bias.
    """

    bits: int
    group_size: int
