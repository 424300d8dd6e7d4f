"""The connections of a door: requests one after the other, and the way out.

A connection is one task; while a request is answered a second one watches whether the client is
still there, and its leaving cancels the answer.  Knows no listener.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from kakeya.config.http import HttpLimits
from kakeya.http.errors import plain_answer
from kakeya.http.messages import Outlet, Request
from kakeya.http.wire import BadRequest, Wire

log = structlog.get_logger(__name__)

# Answers one request; raises OSError when the client has gone.
Handle = Callable[[Request, Outlet], Awaitable[None]]


class Connections:
    """Serves streams with `handle`, at most `max_connections` at once."""

    def __init__(self, handle: Handle, limits: HttpLimits) -> None:
        self._handle = handle
        self._limits = limits
        self._is_draining = False
        self._idle: dict[Wire, trio.CancelScope] = {}
        self._num_open = 0

    def drain(self) -> None:
        """End the idle ones now, and each of the others behind its answer."""
        self._is_draining = True
        for waiting in list(self._idle.values()):
            waiting.cancel()

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """The contained task of one connection; closes `stream`."""
        self._num_open += 1
        try:
            # One too many is closed unheard: even an answer would cost memory and time.
            if self._num_open <= self._limits.max_connections:
                await self._requests(Wire(stream, self._limits, peer=peer))
        except OSError:
            pass  # the client has gone, which is its right
        except Exception:
            log.exception("a connection failed on our own mistake")
        finally:
            self._num_open -= 1
            await trio.aclose_forcefully(stream)

    async def _requests(self, wire: Wire) -> None:
        while not self._is_draining:
            try:
                request = await self._next(wire)
            except BadRequest as bad:
                await _refuse(wire, bad)
                return
            if request is None:
                return
            if self._is_draining:
                wire.end_after_this()
            if not await _answered(wire, request, self._handle) or not wire.can_go_on:
                return
            wire.go_on()

    async def _next(self, wire: Wire) -> Request | None:
        """The next request; None when there is none, or the drain comes before its first byte."""
        with trio.CancelScope() as waiting:
            self._idle[wire] = waiting
            try:
                return await wire.next_request(began=lambda: self._idle.pop(wire))
            finally:
                self._idle.pop(wire, None)
        return None


async def _refuse(wire: Wire, bad: BadRequest) -> None:
    wire.end_after_this()
    if wire.may_answer:
        await wire.whole(plain_answer(bad.status, bad.why))
        await wire.farewell()


async def _answered(wire: Wire, request: Request, handle: Handle) -> bool:
    """Answer one request; False when its client left meanwhile."""
    has_left = False

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal has_left
        await wire.watch()
        has_left = True
        scope.cancel()

    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        try:
            await handle(request, wire)
        except Exception as raised:  # noqa: BLE001 - raised again below, out of the nursery's group
            error = raised
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return not has_left


__all__ = ["Connections", "Handle"]
