"""Byte streams to peers by address, and what an address is."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Sequence
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
        addresses = await self._addresses(host, port)
        tcp = await _connected(addresses, port, stagger_s=self._limits.dial_stagger_s)
        return tcp if self._tls is None else await self._secured(tcp, host, self._tls)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The literal addresses to try, best first.  Raises OSError."""
        if _literal(host) is not None:
            return [host]
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        every = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        fit = [address for address in every if is_peers_place(address)]
        if not fit:
            raise OSError(f"its name stands for {every[0]}, where no peer lives")
        return in_turns(fit)[: self._limits.max_addresses]

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


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_peers_place(address: str) -> bool:
    """Whether a peer found by name may live at this literal address.  Spec: R-17."""
    ip = _literal(address)
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    if ip is None or ip.is_unspecified or ip.is_link_local or ip.is_multicast:
        return False
    return ip.version == 6 or not ip.is_reserved


def in_turns(addresses: Sequence[str]) -> list[str]:
    """The resolver's order, but the two families by turns (RFC 8305): one may be broken whole."""
    first = [a for a in addresses if (":" in a) == (":" in addresses[0])]
    rest = [a for a in addresses if a not in first]
    mixed: list[str] = []
    while first or rest:
        mixed += first[:1] + rest[:1]
        first, rest = first[1:], rest[1:]
    return mixed


async def _connected(addresses: Sequence[str], port: int, *, stagger_s: float) -> trio.SocketStream:
    """The first connection made; the next address gets its turn when one failed or is slow.

    Raises the OSError of the last address that failed when none is made.
    """
    if len(addresses) == 1:
        return await trio.open_tcp_stream(addresses[0], port)
    race = _Race(port)
    try:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(race.attempt, address, failed, nursery.cancel_scope)
                with trio.move_on_after(stagger_s):
                    await failed.wait()
    except BaseException:
        race.close_from(0)
        raise
    race.close_from(1)
    if not race.won:
        raise race.errors[-1]
    return race.won[0]


class _Race:
    """Attempts to connect at the same time, and what came of them."""

    def __init__(self, port: int) -> None:
        self.won: list[trio.SocketStream] = []
        self.errors: list[OSError] = []
        self._port = port

    async def attempt(
        self, address: str, failed: trio.Event, all_of_them: trio.CancelScope
    ) -> None:
        try:
            stream = await trio.open_tcp_stream(address, self._port)
        except OSError as error:
            self.errors.append(error)
            failed.set()
            return
        self.won.append(stream)
        all_of_them.cancel()

    def close_from(self, place: int) -> None:
        for stream in self.won[place:]:
            stream.socket.close()


def split_address(address: str) -> tuple[str, int]:
    """Host (no brackets) and port of `host:port`.  Raises OSError for what is no address."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not colon or not host or not is_number or not 0 < int(port) < 65536:
        raise OSError(f"{address[:80]!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)
