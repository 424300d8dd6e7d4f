"""All sessions of a node: who may open one, whose it is, and what is remembered of it.

Nothing is allocated before a session is admitted.  Knows neither messages nor tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
import trio

from kakeya.compute.device import Device
from kakeya.config.sessions import SessionLimits
from kakeya.drafting.desk import Desk
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.owner import INTERNAL_TEXT, Owner
from kakeya.drafting.session_states import Closed, Ending
from kakeya.drafting.together import Together
from kakeya.errors import Refused, demand
from kakeya.supervision import TaskHome

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class Session:
    """An open session; it belongs to `peer`."""

    session_id: str
    peer: str
    drafter: DflashDrafter
    desk: Desk


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is remembered of a session that ended."""

    peer: str
    detail: str
    ended_at: float  # trio's clock, s


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """For metrics: sessions open now, the bytes they have reserved, and how many ended of what."""

    num_sessions: int
    num_bytes: int
    closed: Mapping[Ending, int]


class Sessions:
    """The registry.  Its owners run as long as run() does."""

    def __init__(self, *, device: Device, limits: SessionLimits) -> None:
        self.held_bytes = 0
        self._device = device
        self._together = Together(device, limits)
        self._limits = limits
        self._open: dict[str, Session] = {}
        self._per_peer: Counter[str] = Counter()
        self._tombstones: dict[str, Tombstone] = {}  # the oldest first
        self._closed = dict.fromkeys(Ending, 0)
        self._home = TaskHome()
        self._is_draining = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let sessions live until cancelled."""
        await self._home.serve(task_status)

    def stop_admitting(self) -> None:
        """The node drains: no Restore any more, what runs may end."""
        self._is_draining = True

    def counts(self) -> SessionCounts:
        return SessionCounts(len(self._open), self.held_bytes, dict(self._closed))

    def find(self, session_id: str, peer: str) -> Session | None:
        """The open session of that name; None without one.

        Raises Refused(NOT_FOUND) for one that belongs to another peer, as if there were none.
        """
        session = self._open.get(session_id)
        if session is not None and session.peer != peer:
            raise self._unknown(session_id)
        return session

    def get(self, session_id: str, peer: str) -> Session:
        """The open session of that name.  Raises Refused(NOT_FOUND), with what became of it."""
        session = self.find(session_id, peer)
        if session is not None:
            return session
        tombstone = self._tombstones.get(session_id)
        if tombstone is None or tombstone.peer != peer:
            raise self._unknown(session_id)
        age_s = trio.current_time() - tombstone.ended_at
        if age_s > self._limits.tombstone_s:
            raise self._unknown(session_id)
        raise Refused(
            "NOT_FOUND", f"session {session_id!r} has ended: {tombstone.detail}, {age_s:.0f} s ago"
        )

    def demand_admitting(self) -> None:
        demand(
            self._home.nursery is not None and not self._is_draining,
            "UNAVAILABLE",
            "the node is stopping",
        )

    def open(self, session_id: str, peer: str, drafter: DflashDrafter) -> Session:
        """A new session in state Opened.  Raises Refused: UNAVAILABLE, RESOURCE_EXHAUSTED."""
        self.demand_admitting()
        assert self._home.nursery is not None
        assert session_id not in self._open
        limits = self._limits
        for num, most, whose in (
            (len(self._open), limits.max_sessions, "this node"),
            (self._per_peer[peer], limits.max_sessions_per_peer, "one peer"),
        ):
            demand(
                num < most,
                "RESOURCE_EXHAUSTED",
                f"{num} sessions are open, the limit for {whose} is {most}",
            )
        session = Session(session_id, peer, drafter, Desk(limits))
        self._open[session_id] = session
        self._per_peer[peer] += 1
        self._home.nursery.start_soon(self._live, session)
        return session

    async def _live(self, session: Session) -> None:
        """The contained task of one session."""
        room = SessionRoom(self, self._limits)
        owner = Owner(
            session.desk,
            session.drafter,
            device=self._device,
            together=self._together,
            room=room,
            limits=self._limits,
        )
        closed = Closed(Ending.STOPPED, "the node is stopping")
        try:
            closed = await owner.run()
        except Exception:
            log.exception("a session failed on our own mistake")
            closed = Closed(Ending.CRASHED, INTERNAL_TEXT)
        finally:
            room.settle(0)
            self._bury(session, closed)

    def _bury(self, session: Session, closed: Closed) -> None:
        """Forget the session but for its tombstone, then answer whoever still waits for it."""
        now = trio.current_time()
        del self._open[session.session_id]
        self._per_peer[session.peer] -= 1
        if not self._per_peer[session.peer]:
            del self._per_peer[session.peer]
        self._closed[closed.ending] += 1
        self._remember(session.session_id, Tombstone(session.peer, closed.detail, now))
        log.info("a session is closed", session=session.session_id, why=closed.detail)
        status = _STATUS_OF.get(closed.ending, "NOT_FOUND")
        why = f"session {session.session_id!r} has ended: {closed.detail}"
        session.desk.close(status, why if status == "NOT_FOUND" else closed.detail)

    def _remember(self, session_id: str, tombstone: Tombstone) -> None:
        self._tombstones.pop(session_id, None)
        self._tombstones[session_id] = tombstone
        too_old_at = tombstone.ended_at - self._limits.tombstone_s
        while len(self._tombstones) > self._limits.max_tombstones or (
            next(iter(self._tombstones.values())).ended_at < too_old_at
        ):
            del self._tombstones[next(iter(self._tombstones))]

    def _unknown(self, session_id: str) -> Refused:
        shown = session_id[: self._limits.max_session_id_len]
        return Refused("NOT_FOUND", f"no session {shown!r} here")


# What those are told who waited when it ended; the others are told NOT_FOUND.
_STATUS_OF = {Ending.STOPPED: "UNAVAILABLE", Ending.CRASHED: "INTERNAL"}


class SessionRoom:
    """What one session has reserved of the node's bytes."""

    def __init__(self, sessions: Sessions, limits: SessionLimits) -> None:
        self._sessions = sessions
        self._limits = limits
        self._held_bytes = 0

    def hold(self, num_bytes: int) -> None:
        """Reserve at least `num_bytes`.  Raises Refused(RESOURCE_EXHAUSTED)."""
        more, limits = num_bytes - self._held_bytes, self._limits
        if more <= 0:
            return
        demand(
            num_bytes <= limits.max_session_bytes,
            "RESOURCE_EXHAUSTED",
            f"the context would take {num_bytes} bytes,"
            f" the limit for one session is {limits.max_session_bytes}",
        )
        held = self._sessions.held_bytes
        demand(
            held + more <= limits.max_node_bytes,
            "RESOURCE_EXHAUSTED",
            f"the context would take {more} bytes more, all contexts of this node hold {held}"
            f" and the limit is {limits.max_node_bytes}",
        )
        self.settle(num_bytes)

    def settle(self, num_bytes: int) -> None:
        """Keep `num_bytes`, give back the rest."""
        self._sessions.held_bytes += num_bytes - self._held_bytes
        self._held_bytes = num_bytes


__all__ = ["Session", "SessionCounts", "Sessions", "Tombstone"]
