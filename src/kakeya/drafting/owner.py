"""The one task that owns a session: takes requests in turn, keeps the state, watches the clock.

It never sees a caller's cancellation; what it holds is gone when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import structlog
import trio

from kakeya.compute.device import Device
from kakeya.config.sessions import SessionLimits
from kakeya.drafting.desk import Desk, Ticket
from kakeya.drafting.drafter import BlockAsk, DflashDrafter
from kakeya.drafting.machine import TABLE, held_bytes, wait_s, why_not
from kakeya.drafting.proposer import Draft
from kakeya.drafting.session_states import Closed, Ending, Opened, Restore, State, Tools
from kakeya.drafting.together import Together
from kakeya.errors import Refused, demand

log = structlog.get_logger(__name__)

T = TypeVar("T")
INTERNAL_TEXT = "internal error"


class Room(Protocol):
    """The bytes of context that one session has reserved."""

    def hold(self, num_bytes: int) -> None:
        """Reserve at least `num_bytes`.  Raises Refused(RESOURCE_EXHAUSTED) naming the limit."""
        ...

    def settle(self, num_bytes: int) -> None:
        """Keep `num_bytes`, give back the rest."""
        ...


class Owner:
    """Serves one session; run() is its life."""

    def __init__(
        self,
        desk: Desk,
        drafter: DflashDrafter,
        *,
        device: Device,
        together: Together,
        room: Room,
        limits: SessionLimits,
    ) -> None:
        self._desk = desk
        self._drafter = drafter
        self._device = device
        self._together = together
        self._room = room
        self._limits = limits
        # No job begins after this (trio's clock, s).
        self._work_until = 0.0

    async def run(self) -> Closed:
        """Serve until the session is closed, or waited or lived too long.

        A CloseSession is left to be answered by whoever closes the desk, once all is released.
        """
        tools = Tools(self._drafter, self._limits, self._work, self._draft, self._room.hold)
        state: State = Opened()
        now = trio.current_time()
        ends_at = now + self._limits.life_s
        until = min(now + wait_s(state, self._limits), ends_at)
        while True:
            ticket = await self._desk.next(state, until)
            if ticket is None:
                return _expired(state, self._limits, is_old=until >= ends_at)
            self._work_until = until if isinstance(state, Opened) else ends_at
            following = await self._serve(state, ticket, tools)
            del ticket  # or its tensors stay until the next request
            if following is not None:
                state = following
                if isinstance(state, Closed):
                    return state
                until = min(trio.current_time() + wait_s(state, self._limits), ends_at)
            self._room.settle(held_bytes(state, self._drafter))

    async def _serve(self, state: State, ticket: Ticket, tools: Tools) -> State | None:
        """Settle `ticket`; the state to go on with, None when it was refused."""
        try:
            transition = TABLE.get((type(state), type(ticket.request)))
            if transition is None:
                raise Refused("FAILED_PRECONDITION", why_not(state, ticket.request))
            following: State
            following, reply = await transition(state, ticket.request, tools)
        except Refused as refused:
            return self._refused(state, ticket, refused.status, refused.why)
        except Exception:
            log.exception("a request of a session failed", request=type(ticket.request).__name__)
            return self._refused(state, ticket, "INTERNAL", INTERNAL_TEXT)
        if not isinstance(following, Closed):
            self._desk.serving = None
            ticket.settle(reply)
        return following

    def _refused(self, state: State, ticket: Ticket, status: str, why: str) -> State | None:
        """Nothing has changed; but a session that could not be opened is none."""
        self._desk.serving = None
        ticket.refuse(status, why)
        if isinstance(state, Opened) and isinstance(ticket.request, Restore):
            return Closed(Ending.RESTORE_FAILED, f"its Restore failed: {why}")
        return None

    async def _work(self, fn: Callable[..., T], *args: Any) -> T:
        """Run one job for the request that is served, unless nobody waits for it."""
        self._demand_wanted()
        return await self._device.run(fn, *args)

    async def _draft(self, ask: BlockAsk) -> Draft:
        """The same for a draft, in one pass with those of other sessions that wait as well."""
        self._demand_wanted()
        return await self._together.draft(self._drafter, ask)

    def _demand_wanted(self) -> None:
        ticket = self._desk.serving
        assert ticket is not None
        demand(not ticket.is_abandoned, "CANCELLED", "the caller has gone")
        demand(
            trio.current_time() < self._work_until,
            "DEADLINE_EXCEEDED",
            "the session's time is over",
        )


def _expired(state: State, limits: SessionLimits, *, is_old: bool) -> Closed:
    if is_old:
        return Closed(Ending.LIFE, f"lived {limits.life_s:g} s, the limit")
    where = type(state).__name__
    return Closed(Ending.IDLE, f"idle {wait_s(state, limits):g} s in {where}")


__all__ = ["INTERNAL_TEXT", "Owner", "Room"]
