"""Looks at one peer: a connection, a probe as peers make it, and what it says of this host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from kakeya.doctor.peers import Ours, Seen
from kakeya.fleet.calls import CallFailed
from kakeya.fleet.card import claimed
from kakeya.fleet.channel_calls import ChannelCalls
from kakeya.fleet.frames import split
from kakeya.rpc.channel import Channels
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# A dial, and each call: what gossip allows itself, and a little.
LIMIT_S = 3.0


async def look_at(
    address: str, *, channels: Channels, ours: Ours, wall: Callable[[], float], has_tls: bool
) -> Seen:
    """What can be seen of the peer at HOST:PORT from here; never raises for what it does."""
    seen = Seen(address, dial_error=await _dial_error(address, channels), has_tls=has_tls)
    if seen.dial_error:
        return seen
    seen = await _probed(seen, channels, wall)
    return await _asked(seen, channels, ours) if seen.status == "OK" else seen


async def _dial_error(address: str, channels: Channels) -> str:
    """Why no connection, TLS included, comes about; "" when one does."""
    with trio.move_on_after(LIMIT_S):
        try:
            stream = await channels.dialer.open(address)
        except OSError as error:
            return _cause(error)
        await trio.aclose_forcefully(stream)
        return ""
    return f"no answer within {LIMIT_S:g} s"


def _cause(error: OSError) -> str:
    """What the system said: dialling wraps the attempts it made."""
    found: BaseException | None = error
    while isinstance(found, OSError | BaseExceptionGroup):
        if isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        elif found.strerror:
            return found.strerror
        else:
            found = found.__cause__
    return str(error)


async def _probed(seen: Seen, channels: Channels, wall: Callable[[], float]) -> Seen:
    """Who is there, and by how much its clock is ahead: its stamp against half the round trip."""
    calls = ChannelCalls(channels)
    sent_unix, sent_s = wall(), trio.current_time()
    try:
        with trio.fail_after(LIMIT_S):
            answer = await calls.probe(seen.address)
    except CallFailed as error:
        return replace(seen, status=error.status, why=error.why)
    except trio.TooSlowError:
        return replace(seen, status="DEADLINE_EXCEEDED", why=f"no answer within {LIMIT_S:g} s")
    rtt_s = trio.current_time() - sent_s
    frames = split(answer, max_cards=1).frames
    claim = claimed(frames[0]) if frames else None
    if claim is None:
        return replace(seen, status="INTERNAL", why="it answered with something that is no card")
    skew_s = claim.announced_at_unix - (sent_unix + rtt_s / 2)
    return replace(seen, status="OK", node_id=claim.node_id[:128], skew_s=skew_s, rtt_s=rtt_s)


async def _asked(seen: Seen, channels: Channels, ours: Ours) -> Seen:
    """What it says of itself and of us; a peer that speaks the bare contract says nothing."""
    stub = NodeServiceStub(channels.to(seen.address))
    try:
        with trio.fail_after(LIMIT_S):
            view = await stub.GetFleet(pb.GetFleetRequest())
    except (RpcFailedError, trio.TooSlowError):
        return seen
    rows = [node for node in view.nodes if node.node_id == ours.node_id]
    return replace(
        seen,
        version=view.version[:32],
        fleet_name=view.fleet_name,
        knows_us=bool(rows),
        reaches_us=any(node.reachable for node in rows),
    )


async def whom_we_are(address: str, channels: Channels, ours: Ours) -> Ours:
    """`ours`, with the name and address of the node that answers at `address`, if one does."""
    stub = NodeServiceStub(channels.to(address))
    try:
        with trio.fail_after(LIMIT_S):
            view = await stub.GetFleet(pb.GetFleetRequest())
    except (RpcFailedError, trio.TooSlowError):
        return ours
    own = [node.grpc_address for node in view.nodes if node.node_id == view.self_node_id]
    return replace(ours, node_id=view.self_node_id, grpc_address=own[0] if own else "")


__all__ = ["look_at", "whom_we_are"]
