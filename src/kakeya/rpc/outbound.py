"""What calls send on a connection: messages in DATA frames, and the ends of answers.

Senders wait for the peer's windows and for room in the queue, and give other tasks their turn.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from kakeya.rpc import frames, life
from kakeya.rpc.headers import RESPONSE_HEAD, status_trailers
from kakeya.rpc.message import Buffer, size_of
from kakeya.rpc.status import again, failure
from kakeya.rpc.stream import Stream

if TYPE_CHECKING:
    from kakeya.rpc.wire import Connection

_PREFIX = struct.Struct(">BI")
# A message up to this size leaves in one piece with its headers: one system call a call.
_ONE_WRITE_BYTES = 16_384
# Give other tasks a turn after this much was sent without waiting.
_TURN_BYTES = 1 << 20


async def send_message(
    connection: Connection,
    stream: Stream,
    buffers: Sequence[Buffer],
    *,
    before: bytes = b"",
    ends: bool,
    after: bytes = b"",
) -> None:
    """Send one gRPC message in DATA frames, with ready frames before and after it.

    buffers: its bytes in order; some may still be queued when this returns.
    Waits for the peer's window and for room in the queue.  Raises the stream's failure.
    """
    size = size_of(buffers)
    whole = size + _PREFIX.size
    if whole <= _ONE_WRITE_BYTES and whole <= stream.window and whole <= connection.window:
        stream.window -= whole
        connection.window -= whole
        flags = frames.END_STREAM if ends else 0
        data = frames.head(whole, frames.DATA, flags, stream.stream_id)
        connection.pump.write(b"".join((before, data, _PREFIX.pack(0, size), *buffers, after)))
    else:
        payload = _Payload((_PREFIX.pack(0, size), *buffers))
        await _send_frames(connection, stream, payload, before=before, ends=ends, after=after)
    if ends:
        connection.advance(stream, life.SEND_END)
    if connection.pump.backlog_bytes > connection.limits.high_water_bytes:
        await connection.pump.room()


class _Payload:
    """Bytes to send, given out run by run without a copy."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.left_bytes = size_of(buffers)
        self._left = deque(memoryview(each) for each in buffers)

    def take(self, num_bytes: int) -> list[memoryview]:
        """The next run; that many bytes must be left."""
        self.left_bytes -= num_bytes
        out: list[memoryview] = []
        while num_bytes:
            first = self._left[0]
            if len(first) > num_bytes:
                self._left[0] = first[num_bytes:]
                first = first[:num_bytes]
            else:
                self._left.popleft()
            out.append(first)
            num_bytes -= len(first)
        return out


async def _send_frames(
    connection: Connection,
    stream: Stream,
    payload: _Payload,
    *,
    before: bytes,
    ends: bool,
    after: bytes,
) -> None:
    turn = _TURN_BYTES
    # With its head a frame of ours fills whole TLS records.
    largest = connection.limits.send_frame_bytes - frames.HEAD_BYTES
    largest = min(largest, connection.peer_frame_bytes)
    while payload.left_bytes:
        room = min(stream.window, connection.window, largest)
        if room <= 0:
            connection.pump.write(before)
            before = b""
            await _wait_for_window(connection, stream)
            continue
        size = min(payload.left_bytes, room)
        stream.window -= size
        connection.window -= size
        turn -= size
        run = payload.take(size)
        is_last = not payload.left_bytes
        flags = frames.END_STREAM if ends and is_last else 0
        head = before + frames.head(size, frames.DATA, flags, stream.stream_id)
        rest = [after] if is_last and after else []
        connection.pump.write(head, *run, *rest)
        before = b""
        if is_last:
            return
        if connection.pump.backlog_bytes > connection.limits.high_water_bytes:
            await connection.pump.room()
            turn = _TURN_BYTES
        elif turn <= 0:
            await trio.lowlevel.checkpoint()
            turn = _TURN_BYTES
        _demand_sendable(stream)


async def _wait_for_window(connection: Connection, stream: Stream) -> None:
    stream.blocked_since = trio.current_time()
    try:
        while min(stream.window, connection.window) <= 0:
            _demand_sendable(stream)
            stream.writable = trio.Event()
            await stream.writable.wait()
        _demand_sendable(stream)
    finally:
        stream.blocked_since = math.inf
        stream.writable = None


def _demand_sendable(stream: Stream) -> None:
    """Raise unless DATA may still be sent."""
    if stream.state not in life.WE_SEND:
        raise (
            failure("CANCELLED", "the call is over")
            if stream.failure is None
            else again(stream.failure)
        )


def answer(connection: Connection, stream: Stream, code: int, text: str) -> None:
    """End a call on the serving side with a status; nothing happens when it is over already."""
    if stream.is_over or connection.closed is not None:
        return
    block = status_trailers(code, text)
    if not stream.sent_head:
        block = RESPONSE_HEAD + block
    answer_block(connection, stream, block)


def answer_block(connection: Connection, stream: Stream, block: bytes) -> None:
    """Send a last header block; a peer that still sends is told to stop."""
    connection.pump.write(connection.headers_frame(stream, block, ends=True))
    stream.sent_head = True
    connection.advance(stream, life.SEND_END)
    if not stream.is_over:
        connection.reset(stream, frames.NO_ERROR)


def end_well(connection: Connection, stream: Stream) -> None:
    """The trailers went out with the last message."""
    if stream.is_over:
        return
    connection.advance(stream, life.SEND_END)
    if not stream.is_over:
        connection.reset(stream, frames.NO_ERROR)
