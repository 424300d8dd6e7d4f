"""Byte streams to peers by address, and what an address is."""

from __future__ import annotations

import ssl
from typing import Protocol

import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.tls import TlsStream


class Dialer(Protocol):
    """Opens byte streams; a simulated network stands in for it in tests."""

    async def open(self, address: str) -> trio.abc.Stream:
        """A stream to `host:port`.  Raises OSError; the caller limits the wait."""
        ...


class TcpDialer:
    """Resolves the name anew each time, so that an address change heals; happy eyeballs."""

    def __init__(self, limits: RpcLimits, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits
        self._tls = tls

    async def open(self, address: str) -> trio.abc.Stream:
        host, port = split_address(address)
        tcp = await trio.open_tcp_stream(host, port)
        return tcp if self._tls is None else await self._secured(tcp, host, self._tls)

    async def _secured(
        self, tcp: trio.SocketStream, host: str, tls: ssl.SSLContext
    ) -> trio.abc.Stream:
        stream = TlsStream(tcp, tls, is_server=False, server_hostname=host)
        try:
            with trio.fail_after(self._limits.handshake_s):
                await stream.shake_hands()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, ssl.SSLError | trio.TooSlowError):
                why = getattr(error, "verify_message", None) or "no handshake"
                raise OSError(f"TLS failed: {why}") from None
            raise
        return stream


def split_address(address: str) -> tuple[str, int]:
    """Host (no brackets) and port of `host:port`.  Raises OSError for what is no address."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise OSError(f"{address[:80]!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
