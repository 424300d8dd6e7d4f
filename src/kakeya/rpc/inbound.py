"""What a peer's frames do to a connection: the only place that judges them.

A fault of one stream answers that stream and the connection lives; a fault of the connection is
raised as ConnectionFault.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from kakeya.errors import STATUS_NAMES, Refused
from kakeya.rpc import frames, life
from kakeya.rpc.flow import Rate
from kakeya.rpc.frames import ConnectionFault, StreamFault
from kakeya.rpc.headers import Fields, HeaderDecoder, Request, find
from kakeya.rpc.intake import Intake
from kakeya.rpc.status import failure, failure_of_http, failure_of_reset
from kakeya.rpc.stream import Stream

if TYPE_CHECKING:
    from kakeya.rpc.wire import Connection

# Handlers that were cancelled may take a moment to end; more than this many per stream allowed
# means the peer opens and resets faster than we clean up.
_HANDLERS_PER_STREAM = 4


class Inbound:
    """The receiving half of one connection (a pump's Sink, an intake's Receiver)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._limits = connection.limits
        preface = b"" if connection.is_client else frames.PREFACE
        self.intake = Intake(self, connection.limits, preface)
        self.has_settings = False
        self.has_settings_ack = False
        self._decoder = HeaderDecoder(connection.limits.max_header_bytes)
        self._recv_window = max(frames.DEFAULT_WINDOW, connection.limits.connection_window_bytes)
        self._uncredited = 0
        self._controls = Rate(connection.limits.max_controls_per_s)
        self._resets = Rate(connection.limits.max_resets_per_s)
        self._updates = Rate(connection.limits.max_window_updates_per_s)

    # ---- bytes

    def feed(self, view: memoryview) -> None:
        if self._connection.closed is not None:
            return
        now = trio.current_time()
        self._connection.heard_at = now
        self.intake.feed(view, now)

    def direct(self) -> memoryview | None:
        return self.intake.direct()

    def placed(self, num_bytes: int) -> None:
        self._connection.heard_at = trio.current_time()
        self.intake.placed(num_bytes)

    # ---- DATA

    def data_begins(self, stream_id: int, length: int, flags: int) -> Stream | None:
        self._demand_greeted()
        self._recv_window -= length
        if self._recv_window < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        if not length and not flags & frames.END_STREAM:
            self._count(self._controls, "empty DATA")
        stream = self._stream_for(stream_id, life.RECV_DATA)
        if stream is None:
            return None
        stream.recv_window -= length
        if stream.recv_window < 0:
            return self._fault(
                stream, StreamFault(frames.FLOW_CONTROL_ERROR, "DATA beyond the window")
            )
        if self._connection.is_client and stream.head is None:
            return self._fault(stream, StreamFault(frames.PROTOCOL_ERROR, "DATA before HEADERS"))
        return stream

    def data(self, stream: Stream, view: memoryview) -> None:
        if stream.is_over:
            return
        connection = self._connection
        try:
            extra = stream.place(view, connection.budget, connection.heard_at)
        except Refused as refused:
            self.refuse(stream, refused)
            return
        if extra:
            # The message has its memory: the peer may send all of it.
            stream.recv_window += extra
            connection.pump.write(frames.window_update(stream.stream_id, extra))

    def data_ends(self, stream: Stream | None, length: int, flags: int) -> None:
        # Every byte was put into memory the budget granted, or thrown away.
        self._uncredited += length
        if self._uncredited >= self._limits.connection_window_bytes // 4:
            self._recv_window += self._uncredited
            self._connection.pump.write(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        if stream is not None and flags & frames.END_STREAM and not stream.is_over:
            self._peer_ends(stream)

    # ---- HEADERS

    def headers(self, stream_id: int, block: bytes, has_ended: bool) -> None:
        self._demand_greeted()
        connection = self._connection
        if stream_id in connection.streams or stream_id in connection.ended:
            self._headers_again(stream_id, block, has_ended)
        elif connection.is_client:
            if stream_id >= connection.next_stream_id or stream_id % 2 == 0:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on a stream nobody opened")
            self._decode(block)  # forgotten; hpack must see the block all the same
        else:
            self._open(stream_id, block, has_ended)

    def _open(self, stream_id: int, block: bytes, has_ended: bool) -> None:
        connection, limits = self._connection, self._limits
        if stream_id % 2 == 0 or stream_id <= connection.last_peer_stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a new stream whose id is not the next")
        connection.last_peer_stream_id = stream_id
        try:
            request = self._decoder.decode_request(block)
        except StreamFault as fault:
            self._reset_unknown(stream_id, fault.code)
            return
        if (
            len(connection.streams) >= limits.max_streams
            or connection.num_handlers >= limits.max_streams * _HANDLERS_PER_STREAM
            or stream_id > connection.last_served_id
        ):
            self._reset_unknown(stream_id, frames.REFUSED_STREAM)
            return
        stream = Stream(
            stream_id,
            state=life.step(life.IDLE, life.RECV_HEADERS),
            window=connection.peer_initial_window,
            recv_window=limits.stream_window_bytes,
            max_message_bytes=limits.max_message_bytes,
            one_message=True,
            now=connection.heard_at,
        )
        connection.streams[stream_id] = stream
        if has_ended:
            stream.state = life.step(stream.state, life.RECV_END)
        self._accept(stream, request)

    def _accept(self, stream: Stream, request: Request) -> None:
        assert self._connection.accept is not None
        self._connection.accept(self._connection, stream, request)

    def _headers_again(self, stream_id: int, block: bytes, has_ended: bool) -> None:
        stream = self._stream_for(stream_id, life.RECV_HEADERS)
        try:
            fields = self._decode(block)
            if stream is None:
                return
            if self._connection.is_client and stream.head is None:
                self._answer_head(stream, fields, has_ended)
            elif not has_ended:
                raise StreamFault(frames.PROTOCOL_ERROR, "trailers without END_STREAM")
            else:
                stream.trailers = fields
        except StreamFault as fault:
            if stream is not None:
                self._fault(stream, fault)
            return
        if has_ended:
            self._peer_ends(stream)

    def _answer_head(self, stream: Stream, fields: Fields, has_ended: bool) -> None:
        status = find(fields, ":status")
        if status is None or len(status) != 3 or not status.isdigit():
            raise StreamFault(frames.PROTOCOL_ERROR, "an answer without :status")
        if status[0] == "1" and not has_ended:
            return  # informational: the answer is still to come
        stream.head = fields
        if has_ended:
            stream.trailers = fields
            return
        content_type = find(fields, "content-type") or ""
        if status != "200" or not content_type.startswith("application/grpc"):
            stream.failure = failure_of_http(status)
            self._connection.reset(stream, frames.CANCEL)

    def _decode(self, block: bytes) -> Fields:
        return self._decoder.decode(block)

    def _peer_ends(self, stream: Stream) -> None:
        is_cut = stream.is_mid_message
        self._connection.advance(stream, life.RECV_END)
        if is_cut:
            self.refuse(stream, Refused("INTERNAL", "the peer's message was cut short"))
        elif stream.state == life.HALF_CLOSED_REMOTE and self._connection.is_client:
            # The answer is complete, nobody wants the rest of our request.
            self._connection.reset(stream, frames.CANCEL, keeps_messages=True)
        stream.wake()

    # ---- the other kinds

    def control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
            return
        self._demand_greeted()
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

    def unknown(self) -> None:
        self._demand_greeted()
        self._count(self._controls, "unknown frames")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection = self._connection
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "a SETTINGS ack with a payload")
            self._demand_greeted()
            self._count(self._controls, "SETTINGS")
            if not self.has_settings_ack:
                self.has_settings_ack = True
                self._decoder.forbid_table()
            return
        self._count(self._controls, "SETTINGS")
        for key, value in frames.parse_settings(payload):
            if key == frames.INITIAL_WINDOW_SIZE:
                self._initial_window(value)
            elif key == frames.MAX_FRAME_SIZE:
                connection.peer_frame_bytes = value
            elif key == frames.MAX_CONCURRENT_STREAMS:
                connection.peer_max_streams = value
            elif key == frames.ENABLE_PUSH and value and connection.is_client:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a server that enables push")
        self.has_settings = True
        self._answer(frames.SETTINGS_ACK)
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
        self._count(self._updates, "WINDOW_UPDATE")
        connection = self._connection
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "a window update of 0")
            connection.window += increment
            if connection.window > frames.MAX_WINDOW:
                raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            self._wake_senders()
            return
        stream = self._stream_for(stream_id, life.RECV_WINDOW)
        if stream is None:
            return
        stream.window += increment
        if not increment:
            self._fault(stream, StreamFault(frames.PROTOCOL_ERROR, "a window update of 0"))
        elif stream.window > frames.MAX_WINDOW:
            self._fault(stream, StreamFault(frames.FLOW_CONTROL_ERROR, "a window beyond 2^31-1"))
        elif stream.writable is not None:
            stream.writable.set()

    def _wake_senders(self) -> None:
        for stream in self._connection.streams.values():
            if stream.writable is not None:
                stream.writable.set()

    def _reset(self, stream_id: int, code: int) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "RST_STREAM on stream 0")
        self._count(self._resets, "RST_STREAM")
        stream = self._stream_for(stream_id, life.RECV_RST)
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
        self._count(self._controls, "PING")
        if not flags & frames.ACK:
            self._answer(frames.ping(payload, is_ack=True))
        elif payload == b"draining":
            if connection.is_going and connection.last_served_id == frames.MAX_STREAM_ID:
                connection.stop_admitting()
        else:
            connection.ping_sent_at = math.inf

    def _goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "GOAWAY on a stream")
        self._count(self._controls, "GOAWAY")
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
        self._count(self._controls, "PRIORITY")
        if len(payload) != 5:
            stream = self._connection.streams.get(stream_id)
            fault = StreamFault(frames.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
            if stream is None:
                raise ConnectionFault(fault.code, fault.why)
            self._fault(stream, fault)

    # ---- judging

    def _stream_for(self, stream_id: int, event: str) -> Stream | None:
        """The open stream a frame is for, moved along unless it ends by `event`.

        None: the frame is to be ignored, or its stream was answered with RST_STREAM.  Raises
        ConnectionFault as the table of stream life says.
        """
        connection = self._connection
        stream = connection.streams.get(stream_id)
        state = self._state_of(stream_id) if stream is None else stream.state
        try:
            life.step(state, event)
        except StreamFault as fault:
            if stream is None:
                self._reset_unknown(stream_id, fault.code)
            else:
                self._fault(stream, fault)
            return None
        return stream

    def _state_of(self, stream_id: int) -> str:
        connection = self._connection
        is_ours = (stream_id % 2 == 1) == connection.is_client
        if is_ours:
            was_used = stream_id < connection.next_stream_id and connection.is_client
        else:
            was_used = stream_id <= connection.last_peer_stream_id
        if not was_used:
            return life.IDLE
        # Ended so long ago that we forgot how: treat it like one that we reset.
        return connection.ended.get(stream_id, life.RESET_LOCAL)

    def _reset_unknown(self, stream_id: int, code: int) -> None:
        self._count(self._resets, "streams refused")
        self._connection.ended[stream_id] = life.RESET_LOCAL
        self._answer(frames.reset(stream_id, code))

    def _fault(self, stream: Stream, fault: StreamFault) -> Stream | None:
        """A stream error: RST_STREAM, and its call ends."""
        self._count(self._resets, "faulty streams")
        stream.failure = stream.failure or failure("INTERNAL", f"the peer's answer: {fault.why}")
        self._connection.reset(stream, fault.code)
        if stream.scope is not None:
            stream.scope.cancel()
        return None

    def refuse(self, stream: Stream, refused: Refused) -> None:
        """End one call for what the peer sent in it (or failed to send)."""
        connection = self._connection
        if connection.is_client:
            stream.failure = stream.failure or failure(refused.status, refused.why)
            connection.release(stream)
            connection.reset(stream, frames.CANCEL)
        else:
            connection.answer(stream, STATUS_NAMES.index(refused.status), refused.why)
            connection.release(stream)
            if stream.scope is not None:
                stream.scope.cancel()
        stream.wake()

    def _demand_greeted(self) -> None:
        if not self.has_settings:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")

    def _count(self, rate: Rate, what: str) -> None:
        if not rate.allows(self._connection.heard_at):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"too many {what}")

    def _answer(self, frame: bytes) -> None:
        """Send what the peer provoked, unless it does not read its answers."""
        pump, limit = self._connection.pump, self._limits.max_unread_answer_bytes
        if pump.backlog_bytes > self._limits.high_water_bytes + limit:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "the peer does not read its answers")
        pump.write(frame)
