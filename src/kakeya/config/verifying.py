"""Limits of the verifier's engine; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VerifyingLimits:
    max_prefill_chunk_len: int = 64
