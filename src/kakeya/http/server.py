"""The HTTP door: its listeners, and the way out."""

from __future__ import annotations

import trio

from kakeya.config.http import HttpLimits
from kakeya.http.connections import Connections, Handle
from kakeya.rpc.listener import Listen, address_of, open_listeners


async def open_http(
    host: str, port: int, *, limits: HttpLimits, listen: Listen = open_listeners
) -> HttpServer:
    """Bind `host`:`port` (0: any).  Raises Refused naming both when that is not possible."""
    return HttpServer(host, await listen(host, port, flag="--http-port"), limits)


class HttpServer:
    """Open listeners, and once served their connections."""

    def __init__(self, host: str, listeners: list[trio.SocketListener], limits: HttpLimits) -> None:
        self.host = host
        self.port = int(listeners[0].socket.getsockname()[1])
        self._listeners = listeners
        self._limits = limits
        self._connections: Connections | None = None
        self._accepting = trio.CancelScope()
        self._is_over = trio.Event()

    @property
    def address(self) -> str:
        """host:port as bound."""
        return address_of((self.host, self.port))

    async def serve(
        self, handle: Handle, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until drained or cancelled."""
        self._connections = connections = Connections(handle, self._limits)

        async def accepted(tcp: trio.SocketStream) -> None:
            await connections.serve(tcp, _peer_of(tcp))

        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(accepted, self._listeners, handler_nursery=nursery)
        finally:
            self._close_listeners()
            self._is_over.set()

    async def drain(self) -> None:
        """Close listeners and idle connections, wait for the others; the caller limits that."""
        self._accepting.cancel()
        self._close_listeners()
        if self._connections is not None:
            self._connections.drain()
            await self._is_over.wait()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.socket.close()


def _peer_of(tcp: trio.SocketStream) -> str:
    try:
        return address_of(tcp.socket.getpeername())
    except OSError:
        return ""  # it was gone before we looked; the first read will say so


__all__ = ["HttpServer", "open_http"]
