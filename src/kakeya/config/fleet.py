"""Limits and intervals of the fleet; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass

from kakeya.errors import demand

# At 6 intervals live cards are dropped even without loss; at 12 none is at 10 % loss.
MIN_TTL_INTERVALS = 12


@dataclass(frozen=True, slots=True)
class FleetLimits:
    # Time between two gossip ticks, and the share of it that is drawn at random either way.
    interval_s: float = 10.0
    jitter_ratio: float = 0.2
    # Above this many nodes ticks are stretched by 1 + log2(nodes / this), lifetimes with them.
    stretch_above_nodes: int = 32
    ttl_s: float = 120.0
    max_ttl_s: float = 3600.0
    # How far ahead of our clock a stamp may be.
    max_ahead_s: float = 30.0
    # A dial, the probe where one is due, and the exchange together.
    exchange_deadline_s: float = 2.0
    max_exchanges: int = 8
    push_peers: int = 3
    max_seeds: int = 64
    max_dead_probability: float = 0.25
    min_seed_probability: float = 0.1
    # Skew and node_id of a peer are measured again after this.
    probe_every_s: float = 60.0
    remember_s: float = 86_400.0
    max_addresses: int = 1024
    max_node_id_bytes: int = 128
    max_text_bytes: int = 512
    max_models: int = 64
    max_card_bytes: int = 16_384
    max_cards: int = 4096
    # Other implementations receive 4 MiB a message by default; 64 KiB are left for the framing.
    max_view_bytes: int = (4 << 20) - (64 << 10)
    max_dropped_stamps: int = 8192
    # Cards merged between two looks at the event loop: 3 ms when all are new.
    chunk_cards: int = 128
    # Share of ticks that first send the card of the tick before, to hear of a second node with
    # our id.
    listen_probability: float = 0.2
    # Stamps forced up by foreign cards with our id before it counts as a duplicate id.
    max_forced_stamps: int = 3
    # Distinct (node, reason) pairs that are logged before rejections are only counted.
    max_logged_rejections: int = 256


def demand_sound(limits: FleetLimits, *, ttl_is_explicit: bool) -> None:
    """Raise Refused(INVALID_ARGUMENT) naming the first pair of limits that cannot work together.

    A lifetime shorter than 12 intervals passes only when the operator asked for it.
    """
    least_ttl_s = MIN_TTL_INTERVALS * limits.interval_s
    demand(
        ttl_is_explicit or limits.ttl_s >= least_ttl_s,
        "INVALID_ARGUMENT",
        f"fleet.ttl_s is {limits.ttl_s:g}, less than {MIN_TTL_INTERVALS} intervals of "
        f"{limits.interval_s:g} s; set fleet.ttl_s to {least_ttl_s:g} or more",
    )
    demand(
        limits.interval_s < limits.ttl_s <= limits.max_ttl_s,
        "INVALID_ARGUMENT",
        f"fleet.ttl_s is {limits.ttl_s:g}, it must be above fleet.interval_s "
        f"({limits.interval_s:g}) and at most fleet.max_ttl_s ({limits.max_ttl_s:g})",
    )
    demand(
        0 <= limits.jitter_ratio < 1,
        "INVALID_ARGUMENT",
        f"fleet.jitter_ratio is {limits.jitter_ratio:g}, it must be at least 0 and below 1",
    )


__all__ = ["MIN_TTL_INTERVALS", "FleetLimits", "demand_sound"]
