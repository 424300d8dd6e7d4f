"""Limits of tensors on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireLimits:
    # The contract's tensors have three or four axes.
    max_tensor_rank: int = 8
    # One tensor; a message has its own, smaller limit in RpcLimits.
    max_tensor_bytes: int = 1 << 30
    # A message with tensors beside their data: its fields (ten a layer), and their bytes
    # (five for a position at most).
    max_bulk_fields: int = 8192
    max_bulk_rest_bytes: int = 4 << 20
