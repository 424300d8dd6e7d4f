"""What SETTINGS, WINDOW_UPDATE, RST_STREAM, PING, GOAWAY and PRIORITY do to a connection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kakeya.rpc import frames, life
from kakeya.rpc.flow import Rate
from kakeya.rpc.frames import ConnectionFault, StreamFault
from kakeya.rpc.status import failure, failure_of_reset

if TYPE_CHECKING:
    from kakeya.rpc.inbound import Inbound
    from kakeya.rpc.wire import Connection


class Control:
    """Part of Inbound: the frames that carry no call's bytes."""

    def __init__(self, inbound: Inbound, connection: Connection) -> None:
        self._inbound = inbound
        self._connection = connection
        self._updates = Rate(connection.limits.max_window_updates_per_s)

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """One whole frame.  Raises ConnectionFault."""
        if kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
            return
        self._inbound.demand_greeted()
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, frames.parse_u32(payload) & frames.MAX_WINDOW)
        elif kind == frames.RST_STREAM:
            self._reset(stream_id, frames.parse_u32(payload))
        elif kind == frames.PING:
            self._ping(flags, stream_id, payload)
        elif kind == frames.GOAWAY:
            self._goaway(stream_id, payload)
        elif kind == frames.PRIORITY:
            self._priority(stream_id, payload)
        else:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PUSH_PROMISE, which was never allowed")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection = self._connection
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a SETTINGS ack with a payload")
            self._inbound.demand_greeted()
            self._inbound.count(self._inbound.controls, "SETTINGS")
            if not self._inbound.has_settings_ack:
                self._inbound.has_settings_ack = True
                self._inbound.decoder.forbid_table()
            return
        self._inbound.count(self._inbound.controls, "SETTINGS")
        for key, value in frames.parse_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                self._initial_window(value)
            elif key == frames.MAX_FRAME_SIZE:
                connection.peer_frame_bytes = value
            elif key == frames.MAX_CONCURRENT_STREAMS:
                connection.peer_max_streams = value
            elif key == frames.ENABLE_PUSH and value and connection.is_client:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a server that enables push")
        self._inbound.has_settings = True
        self._inbound.tell(frames.SETTINGS_ACK)
        connection.wake_slots()
        self._wake_senders()

    def _initial_window(self, value: int) -> None:
        delta = value - self._connection.peer_initial_window
        self._connection.peer_initial_window = value
        for stream in self._connection.streams.values():
            stream.window += delta
            if stream.window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")

    def _window_update(self, stream_id: int, increment: int) -> None:
        self._inbound.count(self._updates, "WINDOW_UPDATE")
        connection = self._connection
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a window update of 0")
            connection.window += increment
            if connection.window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            self._wake_senders()
            return
        stream = self._inbound.stream_for(stream_id, life.RECV_WINDOW)
        if stream is None:
            return
        stream.window += increment
        if not increment:
            self._inbound.fault(stream, StreamFault(frames.PROTOCOL_ERROR, "a window update of 0"))
        elif stream.window > frames.MAX_WINDOW:
            self._inbound.fault(
                stream, StreamFault(frames.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            )
        elif stream.writable is not None:
            stream.writable.set()

    def _wake_senders(self) -> None:
        for stream in self._connection.streams.values():
            if stream.writable is not None:
                stream.writable.set()

    def _reset(self, stream_id: int, code: int) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on stream 0")
        self._inbound.count(self._inbound.resets, "RST_STREAM")
        stream = self._inbound.stream_for(stream_id, life.RECV_RST)
        if stream is None:
            return
        told = stream.trailers is not None
        self._connection.advance(stream, life.RECV_RST)
        if not told:
            stream.failure = stream.failure or failure_of_reset(code)
            self._connection.release(stream)
        if stream.scope is not None:
            stream.scope.cancel()
        stream.wake()

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection = self._connection
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self._inbound.count(self._inbound.controls, "PING")
        if not flags & frames.ACK:
            self._inbound.tell(frames.ping(payload, is_ack=True))
            return
        connection.ping_sent_at = math.inf
        is_first = connection.is_going and connection.last_served_id == frames.MAX_STREAM_ID
        if payload == b"draining" and is_first:
            connection.stop_admitting()

    def _goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        self._inbound.count(self._inbound.controls, "GOAWAY")
        last, code = frames.parse_goaway(payload)
        connection = self._connection
        if not connection.is_client:
            if code:
                raise ConnectionFault(frames.NO_ERROR, f"the peer gave up (HTTP/2 error {code})")
            return
        connection.is_going = True
        for stream in [s for s in connection.streams.values() if s.stream_id > last]:
            stream.failure = failure("UNAVAILABLE", "the peer is going away")
            connection.reset(stream, frames.CANCEL)
        connection.wake_slots()
        connection.close_when_done()

    def _priority(self, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._inbound.count(self._inbound.controls, "PRIORITY")
        if len(payload) != 5:
            stream = self._connection.streams.get(stream_id)
            fault = StreamFault(frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
            if stream is None:
                raise ConnectionFault(fault.code, fault.why)
            self._inbound.fault(stream, fault)
