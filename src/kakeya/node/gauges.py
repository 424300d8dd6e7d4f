"""What the metrics ask for when somebody reads them, and the one that needs a ticker."""

from __future__ import annotations

import trio

from kakeya.decoding import Peers
from kakeya.errors import Refused
from kakeya.fleet.membership import Fleet
from kakeya.metrics import Metrics, Pulled
from kakeya.node.parts import Parts


def pulled(parts: Parts) -> Pulled:
    """The pulled metrics, now."""
    sessions, ready = parts.overview.sessions(), parts.slot.ready
    kept = None if ready is None else ready.engine.prefixes
    return {
        "requests_running": {"": parts.admission.num_running},
        "requests_waiting": {"": parts.admission.num_waiting},
        "kept_prefixes": {"": 0.0 if kept is None else kept.num_kept},
        "kept_prefix_bytes": {"": 0.0 if kept is None else kept.num_bytes},
        "sessions": {"": sessions.num_sessions},
        "session_bytes": {"": sessions.num_bytes},
        "sessions_closed_total": dict(sessions.closed or {}),
        "gossip_rounds_total": dict(parts.fleet.exchanges()),
        "cards_rejected_total": dict(parts.fleet.rejections()),
        "peer_rtt_seconds": _trips(parts.peers),
        **_of_fleet(parts.fleet),
    }


def _of_fleet(fleet: Fleet) -> Pulled:
    others = [row for row in fleet.nodes() if row.node_id != fleet.node_id]
    num_reachable = sum(row.reachable for row in others)
    return {
        "peers": {"reachable": num_reachable, "unreachable": len(others) - num_reachable},
        "clock_skew_seconds": {row.node_id: row.clock_skew_s for row in others},
    }


def _trips(peers: Peers) -> dict[str, float]:
    """The median round trip of a draft by peer; peers that never answered are not there."""
    try:
        places = peers.places()
    except Refused:
        return {}  # nobody offers drafts
    trips = {place.node_id: peers.circuits.of(place).trip_s for place in places}
    return {node_id: trip_s for node_id, trip_s in trips.items() if trip_s}


async def measure_lag(metrics: Metrics, every_s: float) -> None:
    """Tell how late timers run, until cancelled."""
    while True:
        due_s = trio.current_time() + every_s
        await trio.sleep_until(due_s)
        metrics.observe("loop_lag_seconds", trio.current_time() - due_s)
