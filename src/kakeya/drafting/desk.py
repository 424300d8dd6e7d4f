"""Where the requests of one session wait for its owner: in order, few, and each for a limited time.

The caller's side is `ask`; what a caller gets back is a reply or a refusal, never an exception
with frames of the owner in it.
"""

from __future__ import annotations

from typing import Any

import trio

from kakeya.config.sessions import SessionLimits
from kakeya.drafting.machine import is_early
from kakeya.drafting.session_states import CloseSession, Request, State
from kakeya.errors import Refused, demand


class Ticket:
    """A request at the desk: who waits for it, whether they still do, and what they get."""

    __slots__ = ("_reply", "_status", "_why", "done", "early_until", "is_abandoned", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = trio.Event()
        self.is_abandoned = False
        # When it stops waiting for the context to come up to it (trio's clock, s); None: it does
        # not, as far as is known.
        self.early_until: float | None = None
        self._status = ""
        self._why = ""
        self._reply: Any = None

    def settle(self, reply: Any) -> None:
        self._reply = reply
        self.done.set()

    def refuse(self, status: str, why: str) -> None:
        self._status, self._why = status, why
        self.done.set()

    def reply(self) -> Any:
        """What the owner said.  Raises Refused anew: the frames in it are the caller's own."""
        if self._status:
            raise Refused(self._status, self._why)
        return self._reply


class Desk:
    """One session's requests: those that wait, and the one that is served."""

    def __init__(self, limits: SessionLimits) -> None:
        self.serving: Ticket | None = None
        self._limits = limits
        self._tickets: list[Ticket] = []
        self._arrival = trio.Event()
        self._is_closed = False

    async def ask(self, request: Request) -> Any:
        """Have `request` served in its turn; raises what it was refused with.

        Cancelling the caller abandons the request: the owner stops it before its next job, and
        what the job under way has made is kept.
        """
        assert not self._is_closed
        limit = self._limits.max_waiting_requests
        demand(
            len(self._tickets) < limit,
            "RESOURCE_EXHAUSTED",
            f"{limit} requests wait for this session, which is the limit",
        )
        ticket = Ticket(request)
        self._tickets.append(ticket)
        self._arrival.set()
        try:
            await ticket.done.wait()
        except trio.Cancelled:
            ticket.is_abandoned = True
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            raise
        return ticket.reply()

    async def next(self, state: State, until: float) -> Ticket | None:
        """The request whose turn it is in `state`; None when there was none until `until`."""
        while True:
            now = trio.current_time()
            if now >= until:
                return None
            ticket, look_again_at = self._choose(state, now)
            if ticket is not None:
                self._tickets.remove(ticket)
                self.serving = ticket
                return ticket
            self._arrival = trio.Event()
            with trio.move_on_at(min(until, look_again_at)):
                await self._arrival.wait()

    def close(self, status: str, why: str) -> None:
        """Nothing is served any more: CloseSession has what it wanted, all else is refused."""
        self._is_closed = True
        if self.serving is not None:
            self._tickets.insert(0, self.serving)
            self.serving = None
        for ticket in self._tickets:
            if isinstance(ticket.request, CloseSession):
                ticket.settle(None)
            else:
                ticket.refuse(status, why)
        self._tickets.clear()

    def _choose(self, state: State, now: float) -> tuple[Ticket | None, float]:
        """The first ticket that need not wait, and when the one that does has waited enough.

        One request may lie ahead of the context.  When its time is over it has its turn all the
        same, and is refused like any other whose numbers do not fit.
        """
        early: Ticket | None = None
        for ticket in tuple(self._tickets):
            if not is_early(state, ticket.request):
                return ticket, now
            if ticket.early_until is None:
                ticket.early_until = now + self._limits.early_s
            if now >= ticket.early_until:
                return ticket, now
            if early is None:
                early = ticket
                continue
            self._tickets.remove(ticket)
            ticket.refuse(
                "RESOURCE_EXHAUSTED",
                "one request ahead of the context waits already, which is the limit",
            )
        if early is None or early.early_until is None:
            return None, float("inf")
        return None, early.early_until


__all__ = ["Desk", "Ticket"]
