"""Limits of tensors on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireLimits:
    # The contract's tensors have three or four axes.
    max_tensor_rank: int = 8
    # One tensor; a message has its own, smaller limit in RpcLimits.
    max_tensor_bytes: int = 1 << 30
