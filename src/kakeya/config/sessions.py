"""Limits of DFlash sessions (host B); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionLimits:
    # A session waits this long, in each of its states, for a request that it can serve; what was
    # refused does not count.  In Opened the first Restore must have ended.
    opened_s: float = 30.0
    restored_s: float = 30.0
    seeded_s: float = 60.0
    drafting_s: float = 60.0
    # The whole life of a session, however busy: the longest generation fits many times.
    life_s: float = 14_400.0
    # A request that is ahead of the context waits for what fills the gap: 330 kB of aux for
    # eight rows of an 8B model take 0.3 s on a slow wireless link.
    early_s: float = 2.0
    max_waiting_requests: int = 8
    max_sessions: int = 64
    max_sessions_per_peer: int = 32
    # K/V of one context, and of all contexts of the node: 20 kB a position for an 8B model's
    # drafter, so a context of 32k positions and six of them.
    max_session_bytes: int = 1 << 30
    max_node_bytes: int = 4 << 30
    # Banks of one Restore, below the largest message of RpcLimits.
    max_restore_bytes: int = 480 << 20
    # Blocks drafted in one pass: the eighth costs a few percent of the first on two cores.
    max_together: int = 8
    # How long the first draft that wants the device waits for others to join; 0: those that
    # wait anyway do.
    gather_s: float = 0.0
    max_session_id_len: int = 128
    # What is remembered of sessions that ended.
    tombstone_s: float = 600.0
    max_tombstones: int = 1024


__all__ = ["SessionLimits"]
