"""The ports this node would take, and the addresses peers might reach it at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kakeya.doctor.finding import Finding, failed, ok, skipped
from kakeya.errors import Refused
from kakeya.fleet.address import joined, kind_of, reach_of
from kakeya.rpc.listener import open_listeners

# Interfaces whose addresses lead nowhere from another machine: bridges of containers and VMs.
INNER = ("docker", "br-", "veth", "virbr", "cni", "flannel", "utun", "awdl", "llw")


async def port_finding(check: str, host: str, port: int, *, flag: str, is_ours: bool) -> Finding:
    """Whether a node could listen there.  is_ours: this host's running node has it already."""
    if is_ours:
        return ok(check, f"{port}, this host's node listens there")
    if port == 0:
        return ok(check, "any free one")
    try:
        listeners = await open_listeners(host, port, flag=flag)
    except Refused as refused:
        return failed(check, refused.why, do=f"end what uses it, or choose another with {flag}")
    for listener in listeners:
        listener.socket.close()
    return ok(check, f"{port} on {host} is free")


def candidates(interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """The addresses another machine could know us by, likely ones first.

    interfaces: name → addresses in numbers.  Loopback and link-local ones are none; those of
    bridges for containers come last.
    """
    found = [
        (name.startswith(INNER), ":" in address, address)
        for name, addresses in interfaces.items()
        for address in addresses
        if kind_of(address.partition("%")[0]) == "literal"
    ]
    return [address for _, _, address in sorted(found)]


def address_findings(
    *,
    host: str,
    port: int,
    advertise: str,
    interfaces: Mapping[str, Sequence[str]],
    routes: Mapping[str, str],
) -> list[Finding]:
    """What the card would say, and the other addresses it could say.

    routes: peer → the local address on the route to it, "" where there is no route.
    """
    others = candidates(interfaces)
    shown = ", ".join(others) or "none"
    findings = [ok("addresses", f"this host's: {shown}")]
    for peer, source in routes.items():
        findings.append(_route(peer, source, host=host, port=port, advertise=advertise))
    if not routes:
        findings.append(skipped("advertised address", "no --peer is given, nobody to reach it"))
    return findings


def _route(peer: str, source: str, *, host: str, port: int, advertise: str) -> Finding:
    check = f"advertised address to {peer}"
    if not source:
        return failed(check, "there is no route to it", do="check the address and the network")
    is_near = kind_of(source) == "loopback"
    told = advertise or joined(source if kind_of(host) == "wildcard" else host, port)
    if is_near or reach_of(told if ":" in told else joined(told, port or 1)) != "near":
        return ok(check, told)
    return failed(
        check,
        f"{told}, which leads the peer to itself",
        do=f"bind beyond loopback (--host 0.0.0.0) or give --advertise {source}",
    )


__all__ = ["address_findings", "candidates", "port_finding"]
