"""Limits of the RPC layer; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RpcLimits:
    max_message_bytes: int = 512 << 20
