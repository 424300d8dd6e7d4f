"""What a peer's frames do to a connection: the only place that judges them.

A fault of one stream answers that stream and the connection lives; a fault of the connection is
raised as ConnectionFault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kakeya.errors import STATUS_NAMES, Refused
from kakeya.rpc import frames, life
from kakeya.rpc.control import Control
from kakeya.rpc.flow import Rate
from kakeya.rpc.frames import ConnectionFault, StreamFault
from kakeya.rpc.headers import Fields, HeaderDecoder, Request, find
from kakeya.rpc.intake import Intake
from kakeya.rpc.outbound import answer
from kakeya.rpc.status import failure, failure_of_http
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
        self.decoder = HeaderDecoder(connection.limits.max_header_bytes)
        self._recv_window = max(frames.DEFAULT_WINDOW, connection.limits.connection_window_bytes)
        self._uncredited = 0
        self.controls = Rate(connection.limits.max_controls_per_s)
        self.resets = Rate(connection.limits.max_resets_per_s)
        self._control = Control(self, connection)

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
        self.demand_greeted()
        self._recv_window -= length
        if self._recv_window < 0:
            raise ConnectionFault(frames.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
        if not length and not flags & frames.END_STREAM:
            self.count(self.controls, "empty DATA")
        stream = self.stream_for(stream_id, life.RECV_DATA)
        if stream is None:
            return None
        stream.recv_window -= length
        if stream.recv_window < 0:
            return self.fault(
                stream, StreamFault(frames.FLOW_CONTROL_ERROR, "DATA beyond the window")
            )
        if self._connection.is_client and stream.head is None:
            return self.fault(stream, StreamFault(frames.PROTOCOL_ERROR, "DATA before HEADERS"))
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
        self.demand_greeted()
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
            request = self.decoder.decode_request(block)
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
        stream = self.stream_for(stream_id, life.RECV_HEADERS)
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
                self.fault(stream, fault)
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
        return self.decoder.decode(block)

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
        self._control.frame(kind, flags, stream_id, payload)

    def unknown(self) -> None:
        self.demand_greeted()
        self.count(self.controls, "unknown frames")

    # ---- judging

    def stream_for(self, stream_id: int, event: str) -> Stream | None:
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
                self.fault(stream, fault)
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
        self.count(self.resets, "streams refused")
        self._connection.ended[stream_id] = life.RESET_LOCAL
        self.tell(frames.reset(stream_id, code))

    def fault(self, stream: Stream, fault: StreamFault) -> Stream | None:
        """A stream error: RST_STREAM, and its call ends."""
        self.count(self.resets, "faulty streams")
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
            answer(connection, stream, STATUS_NAMES.index(refused.status), refused.why)
            connection.release(stream)
            if stream.scope is not None:
                stream.scope.cancel()
        stream.wake()

    def demand_greeted(self) -> None:
        if not self.has_settings:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the first frame is not SETTINGS")

    def count(self, rate: Rate, what: str) -> None:
        if not rate.allows(self._connection.heard_at):
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"too many {what}")

    def tell(self, frame: bytes) -> None:
        """Send what the peer provoked, unless it does not read its answers."""
        pump, limit = self._connection.pump, self._limits.max_unread_answer_bytes
        if pump.backlog_bytes > self._limits.high_water_bytes + limit:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "the peer does not read its answers")
        pump.write(frame)
