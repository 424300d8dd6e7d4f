"""Limits and intervals of the fleet; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetLimits:
    interval_s: float = 10.0
