"""Limits and budgets of the speculative loop (host A); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecodingLimits:
    max_num_drafts: int = 16
