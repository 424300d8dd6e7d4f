"""Addresses as cards and seeds carry them: `host:port`, `[v6]:port`.

Pure text; resolves nothing.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Kind = Literal["wildcard", "loopback", "forbidden", "literal", "name"]
# From where an address on a card can be dialled: its owner's machine, anywhere, nowhere.
Reach = Literal["near", "far", "nowhere"]
MAX_HOST_BYTES = 253
# The same few addresses are asked about at every tick and call.
MAX_CACHED_ADDRESSES = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name or literal, no brackets) and a port in 1 … 65535."""

    host: str
    port: int


@lru_cache(maxsize=MAX_CACHED_ADDRESSES)
def parse(text: str) -> Address | None:
    """The address that `text` writes, or None when it writes none."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and len(port) <= 5):
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    is_plain = host.isascii() and host.isprintable() and not set(host) & set(" /@?#[]")
    if not host or not is_plain or len(host) > MAX_HOST_BYTES or not 1 <= int(port) <= 65535:
        return None
    return Address(host, int(port))


def joined(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 literal."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@lru_cache(maxsize=MAX_CACHED_ADDRESSES)
def kind_of(host: str) -> Kind:
    """What a host stands for.

    `forbidden` is what no peer can live at: link-local (where clouds keep their metadata
    service), multicast, reserved, and numbers that a resolver would read as an IPv4 literal.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "forbidden" if _ends_in_a_number(host) else "name"
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    if ip.is_unspecified:
        return "wildcard"
    if ip.is_loopback:
        return "loopback"
    if ip.is_link_local or ip.is_multicast or (ip.version == 4 and ip.is_reserved):
        return "forbidden"
    return "literal"


def _ends_in_a_number(host: str) -> bool:
    last = host.rstrip(".").rpartition(".")[2].lower()
    return last.isdigit() or last.startswith("0x")


def reach_of(text: str) -> Reach:
    """From where an address that came on a card may be dialled.

    A loopback address would lead anyone but its owner's neighbours back to themselves.
    Spec: F-14.
    """
    address = parse(text)
    kind = "forbidden" if address is None else kind_of(address.host)
    if kind == "loopback":
        return "near"
    return "far" if kind in ("literal", "name") else "nowhere"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the node listens, and what the operator told it to advertise ("" = derive it)."""

    host: str
    port: int
    advertise: str


def advertised(listening: Listening, *, current: str, source: str) -> str:
    """The address to put on our card for a peer that is reached from the local IP `source`.

    `current` is what the card says now ("" = nothing yet) and is kept while it serves.  ""
    means that nothing fit can be said: the peer is on another machine and we listen on loopback
    only.  Spec: F-14.
    """
    if listening.advertise:
        asked = parse(listening.advertise)
        fixed = listening.advertise if asked else joined(listening.advertise, listening.port)
    elif kind_of(listening.host) != "wildcard":
        fixed = joined(listening.host, listening.port)
    elif current and reach_of(current) != "near":
        fixed = current
    else:
        fixed = joined(source, listening.port) if source else current
    is_remote = bool(source) and kind_of(source) != "loopback"
    return "" if is_remote and reach_of(fixed) == "near" else fixed
