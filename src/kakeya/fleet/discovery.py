"""Which of this machine's addresses a peer would see us at.

The one place of the fleet that asks the operating system; a fake stands in for it in tests.
"""

from __future__ import annotations

from typing import Protocol

import trio


class Route(Protocol):
    """Finds the local IP from which `host` is reached, "" when there is no way to it."""

    async def __call__(self, host: str, port: int) -> str: ...


async def udp_route(host: str, port: int) -> str:
    """Ask the routing table: a UDP socket is connected, which sends nothing, and read back.

    A name is resolved anew each time, so that a seed whose address changed is found.
    """
    try:
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, peer in found:
        with trio.socket.socket(family, kind, protocol) as sock:
            try:
                await sock.connect(peer)
            except OSError:
                continue
            return str(sock.getsockname()[0]).partition("%")[0]
    return ""
