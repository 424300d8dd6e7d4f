"""Looks after a connection's limits in time: handshake, header, message, stall, idle, keepalive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from kakeya.errors import Refused
from kakeya.rpc import frames
from kakeya.rpc.frames import ConnectionFault
from kakeya.rpc.stream import Stream

if TYPE_CHECKING:
    from kakeya.rpc.wire import Connection

KEEPALIVE = b"kakeya\x00\x00"


async def look_after(connection: Connection) -> None:
    """Check every limit each `check_s`, until cancelled."""
    while True:
        await trio.sleep(connection.limits.check_s)
        check(connection, trio.current_time())


def check(connection: Connection, now: float) -> None:
    """End what is over its time at `now`: a call, or the whole connection."""
    if connection.closed is not None:
        return
    fault = overdue(connection, now)
    if fault is not None:
        connection.abort(fault)
        return
    for stream in list(connection.streams.values()):
        refused = call_overdue(connection, stream, now)
        if refused is not None:
            connection.inbound.refuse(stream, refused)
    _keep_alive(connection, now)


def overdue(connection: Connection, now: float) -> ConnectionFault | None:
    """Why the connection has to end, or None."""
    limits, inbound, pump = connection.limits, connection.inbound, connection.pump
    if now - connection.started_at > limits.handshake_s and not inbound.has_settings:
        return ConnectionFault(frames.SETTINGS_TIMEOUT, "no SETTINGS from the peer in time")
    if now - connection.started_at > 2 * limits.handshake_s and not inbound.has_settings_ack:
        return ConnectionFault(frames.SETTINGS_TIMEOUT, "our SETTINGS were not acknowledged")
    if now - inbound.intake.unfinished_since > limits.header_s:
        return ConnectionFault(frames.ENHANCE_YOUR_CALM, "a frame was not finished in time")
    if pump.backlog_bytes and now - pump.progress_at > limits.stall_s:
        return ConnectionFault(frames.ENHANCE_YOUR_CALM, "the peer stopped reading")
    unanswered_s = now - max(connection.ping_sent_at, connection.heard_at)
    if connection.ping_sent_at < math.inf and unanswered_s > limits.keepalive_ack_s:
        return ConnectionFault(frames.NO_ERROR, "the peer does not answer PING")
    if not connection.streams and now - connection.idle_since > limits.idle_s:
        return ConnectionFault(frames.NO_ERROR, "the connection was idle")
    return None


def call_overdue(connection: Connection, stream: Stream, now: float) -> Refused | None:
    """Why one call has to end, or None."""
    limits = connection.limits
    allowed_s = limits.message_s + stream.arriving_bytes / limits.min_message_bytes_per_s
    if now - stream.message_since > allowed_s:
        return Refused("DEADLINE_EXCEEDED", f"a message was not whole within {allowed_s:.0f} s")
    if now - stream.blocked_since > limits.stall_s:
        return Refused("UNAVAILABLE", f"the peer opened no window for {limits.stall_s:g} s")
    waits = not connection.is_client and not stream.num_messages and not stream.peer_ended
    if waits and now - stream.opened_at > allowed_s:
        return Refused("DEADLINE_EXCEEDED", f"no message within {allowed_s:.0f} s")
    return None


def _keep_alive(connection: Connection, now: float) -> None:
    silent_s = now - connection.heard_at
    if connection.streams and silent_s > connection.limits.keepalive_s:
        probe(connection, now)


def probe(connection: Connection, now: float) -> None:
    """Ask the peer for a sign of life; silence from now on ends the connection."""
    if connection.ping_sent_at == math.inf and connection.closed is None:
        connection.ping_sent_at = now
        connection.pump.write(frames.ping(KEEPALIVE))
