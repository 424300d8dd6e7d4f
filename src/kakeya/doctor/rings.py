"""The line about rings: two ranks on this host, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping

from kakeya.doctor.finding import Finding, failed, ok, skipped
from kakeya.ring.probe import LIMIT_S, Probe, has_ring, probe_ring
from kakeya.rpc.listener import open_listeners

NUM_RANKS = 2
HOST = "127.0.0.1"


async def ring_finding(environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> Finding:
    """Whether MLX's ring works between two processes here.  The node never joins one itself."""
    if not has_ring():
        return skipped("ring", "no mlx here")
    hosts = [f"{HOST}:{port}" for port in await _free_ports(NUM_RANKS)]
    return told(await probe_ring(hosts, environment=environment, limit_s=limit_s))


def told(probe: Probe) -> Finding:
    if probe.works:
        return ok("ring", f"{probe.size} local ranks, data exact both ways; on no card")
    do = "nothing needs it: drafts and K/V travel by gRPC, ring_address stays empty"
    return failed("ring", f"{probe.size} local ranks: {probe.why}", do=do)


async def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    listeners = [(await open_listeners(HOST, 0))[0] for _ in range(count)]
    ports = [int(listener.socket.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.socket.close()
    return ports


__all__ = ["ring_finding", "told"]
