"""Limits of serving drafts (host B); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    max_num_drafts: int = 64
