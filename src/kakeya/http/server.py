"""The HTTP door: listeners, connections up to their number, and the way out.

A connection is one task; while a request is answered a second one watches whether the client is
still there, and its leaving cancels the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from kakeya.config.http import HttpLimits
from kakeya.http.errors import plain_answer
from kakeya.http.messages import Outlet, Request
from kakeya.http.wire import BadRequest, Wire
from kakeya.rpc.listener import address_of, open_listeners

log = structlog.get_logger(__name__)

# Answers one request; raises OSError when the client has gone.
Handle = Callable[[Request, Outlet], Awaitable[None]]


async def open_http(host: str, port: int, *, limits: HttpLimits) -> HttpServer:
    """Bind `host`:`port` (0: any).  Raises Refused naming both when that is not possible."""
    return HttpServer(host, await open_listeners(host, port, flag="--http-port"), limits=limits)


class HttpServer:
    """Open listeners, and once served their connections."""

    def __init__(
        self, host: str, listeners: list[trio.SocketListener], *, limits: HttpLimits
    ) -> None:
        self.host = host
        self.port = int(listeners[0].socket.getsockname()[1])
        self._listeners = listeners
        self._limits = limits
        self._accepting = trio.CancelScope()
        self._is_over = trio.Event()
        self._is_draining = False
        self._idle: dict[Wire, trio.CancelScope] = {}
        self._num_connections = 0

    @property
    def address(self) -> str:
        """host:port as bound."""
        return address_of((self.host, self.port))

    async def serve(
        self, handle: Handle, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until drained or cancelled."""
        try:
            async with trio.open_nursery() as connections:
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(
                        partial(self._accepted, handle),
                        self._listeners,
                        handler_nursery=connections,
                    )
        finally:
            self._close_listeners()
            self._is_over.set()

    async def drain(self) -> None:
        """Close listeners and idle connections, wait for the others; the caller limits that."""
        self._is_draining = True
        self._accepting.cancel()
        self._close_listeners()
        for waiting in list(self._idle.values()):
            waiting.cancel()
        await self._is_over.wait()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.socket.close()

    async def _accepted(self, handle: Handle, tcp: trio.SocketStream) -> None:
        """The contained task of one accepted connection."""
        try:
            if self._num_connections >= self._limits.max_connections:
                return
            self._num_connections += 1
            try:
                wire = Wire(tcp, self._limits, peer=address_of(tcp.socket.getpeername()))
                await self.serve_wire(wire, handle)
            finally:
                self._num_connections -= 1
        except OSError:
            pass  # the client has gone, which is its right
        except Exception:
            log.exception("a connection failed on our own mistake")
        finally:
            await trio.aclose_forcefully(tcp)

    async def serve_wire(self, wire: Wire, handle: Handle) -> None:
        """Requests of one connection, one after the other."""
        while True:
            try:
                request = await self._next(wire)
            except BadRequest as bad:
                await self._refuse(wire, bad)
                return
            if request is None:
                return
            if self._is_draining:
                wire.end_after_this()
            if not await _answered(wire, request, handle) or not wire.can_go_on:
                return
            if self._is_draining:
                return
            wire.go_on()

    async def _next(self, wire: Wire) -> Request | None:
        """The next request; None when there is none, or the server drains before it begins."""
        if self._is_draining:
            return None
        with trio.CancelScope() as waiting:
            self._idle[wire] = waiting
            try:
                return await wire.next_request(began=lambda: self._idle.pop(wire))
            finally:
                self._idle.pop(wire, None)
        return None

    async def _refuse(self, wire: Wire, bad: BadRequest) -> None:
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


__all__ = ["Handle", "HttpServer", "open_http"]
