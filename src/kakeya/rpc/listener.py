"""Listeners on a chosen host and port, and the server that runs an endpoint on them."""

from __future__ import annotations

import errno
import socket
import ssl
from functools import partial
from typing import Protocol

import structlog
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.errors import Refused
from kakeya.rpc.endpoint import Endpoint, Peer
from kakeya.rpc.security import principal_of
from kakeya.rpc.tls import TlsStream

log = structlog.get_logger(__name__)

_BACKLOG = 128


async def open_server(
    host: str, port: int, *, limits: RpcLimits, tls: ssl.SSLContext | None = None
) -> Server:
    """Bind `host`:`port` (0: any).  Raises Refused naming both when that is not possible."""
    return Server(host, await open_listeners(host, port), limits=limits, tls=tls)


class Listen(Protocol):
    """Binds every address of a host; in memory listeners only look like sockets'."""

    async def __call__(
        self, host: str, port: int, *, flag: str = "--port"
    ) -> list[trio.SocketListener]:
        """Raises Refused naming host and port.  flag: what sets the port."""
        ...


async def open_listeners(
    host: str, port: int, *, flag: str = "--port"
) -> list[trio.SocketListener]:
    """Listeners on every address of `host`, all on one port; port 0 takes any free one.

    Never shared with another process.  flag: what sets the port.  Raises Refused naming host and
    port.
    """
    try:
        found = await trio.socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise Refused(
            "FAILED_PRECONDITION", f"cannot listen on {host}: {error.strerror}"
        ) from error
    listeners: list[trio.SocketListener] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            place = (address[0], port, *address[2:])
            listener = _listen(family, place)
            listeners.append(listener)
            # Port 0: the other addresses of the host follow the first one's port.
            port = listener.socket.getsockname()[1]
    except OSError as error:
        for listener in listeners:
            listener.socket.close()
        raise Refused("FAILED_PRECONDITION", _why_not(host, port, flag, error)) from error
    return listeners


def _listen(family: int, place: tuple[object, ...]) -> trio.SocketListener:
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        # Only lets a port be taken again while old connections time out; two listeners on one
        # port stay impossible.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        _bind_now(sock, place)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return trio.SocketListener(sock)


def _bind_now(sock: trio.socket.SocketType, place: tuple[object, ...]) -> None:
    # The address is numeric by now: trio's bind would only look it up again.
    raw = socket.socket(fileno=socket.dup(sock.fileno()))
    try:
        raw.bind(place)
    finally:
        raw.close()


def _why_not(host: str, port: int, flag: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use, choose another with {flag}"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def address_of(name: object) -> str:
    """HOST:PORT of a socket name; "" for a socket that has none."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = str(name[0]), name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Server:
    """Open listeners, and once served their connections."""

    def __init__(
        self,
        host: str,
        listeners: list[trio.SocketListener],
        *,
        limits: RpcLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = int(listeners[0].socket.getsockname()[1])
        self._listeners = listeners
        self._limits = limits
        self._tls = tls
        self._accepting = trio.CancelScope()
        self._is_over = trio.Event()

    @property
    def address(self) -> str:
        """host:port as bound."""
        return address_of((self.host, self.port))

    async def serve(
        self, endpoint: Endpoint, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Accept and serve until drained or cancelled."""
        try:
            async with trio.open_nursery() as connections:
                task_status.started()
                with self._accepting:
                    await trio.serve_listeners(
                        partial(self._connection, endpoint),
                        self._listeners,
                        handler_nursery=connections,
                    )
                endpoint.go_away()
        finally:
            for listener in self._listeners:
                listener.socket.close()
            self._is_over.set()

    async def drain(self) -> None:
        """Close the listeners, then wait for the calls in progress; the caller limits the wait."""
        self._accepting.cancel()
        for listener in self._listeners:
            listener.socket.close()
        await self._is_over.wait()

    async def close(self) -> None:
        """Close listeners that are not being served."""
        for listener in self._listeners:
            await listener.aclose()

    async def _connection(self, endpoint: Endpoint, tcp: trio.SocketStream) -> None:
        """The contained task of one accepted connection."""
        try:
            address = address_of(tcp.socket.getpeername())
            if endpoint.num_connections >= self._limits.max_connections:
                await trio.aclose_forcefully(tcp)
                return
            stream, principal = await self._secured(tcp)
            if stream is not None:
                await endpoint.serve_stream(stream, Peer(address, principal))
        except OSError:
            # It was gone before we looked.
            await trio.aclose_forcefully(tcp)
        except Exception:
            log.exception("a connection failed on our own mistake")
            await trio.aclose_forcefully(tcp)

    async def _secured(self, tcp: trio.SocketStream) -> tuple[trio.abc.Stream | None, str]:
        """The stream to serve and who the peer proved to be; None: it failed to."""
        if self._tls is None:
            return tcp, ""
        stream = TlsStream(tcp, self._tls, is_server=True)
        try:
            with trio.fail_after(self._limits.handshake_s):
                await stream.shake_hands()
        except (OSError, trio.TooSlowError):
            log.info("a TLS handshake failed")
            await trio.aclose_forcefully(stream)
            return None, ""
        return stream, principal_of(stream.peer_certificate())
