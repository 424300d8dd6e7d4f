"""One call as its caller sees it: opened on a channel's connection, sent, received, cancelled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from kakeya.rpc import frames, life
from kakeya.rpc.headers import (
    Metadata,
    decode_metadata,
    encode_metadata,
    find,
    format_timeout,
    request_head,
    timeout_field,
)
from kakeya.rpc.message import Buffer, size_of
from kakeya.rpc.outbound import send_message
from kakeya.rpc.status import (
    RpcFailedError,
    again,
    failure,
    failure_of_code,
    failure_of_http,
    unquote_text,
)
from kakeya.rpc.stream import Message, Stream
from kakeya.rpc.watch import probe
from kakeya.rpc.wire import Connection

if TYPE_CHECKING:
    from kakeya.rpc.channel import Channel


class OutgoingCall:
    """A call on its way.  Leaving it unfinished without cancel() keeps its stream open.

    Answers are put together in what `memory` gives for their size.
    """

    def __init__(
        self,
        channel: Channel,
        path: str,
        metadata: Metadata,
        *,
        memory: Callable[[int], Buffer] = bytearray,
    ) -> None:
        self._channel = channel
        self._path = path
        self._memory = memory
        # Checked before anything is sent.
        self._metadata = encode_metadata(metadata) if metadata else b""
        self._connection: Connection | None = None
        self._stream: Stream | None = None
        # Only there while somebody waits for the call to be opened by its first message.
        self._opened: trio.Event | None = None
        self._begun_at = math.inf

    async def send(self, buffers: Sequence[Buffer], *, ends: bool) -> None:
        """Send one message; the first one opens the call.  Raises RpcFailedError."""
        limit, size = self._channel.limits.max_message_bytes, size_of(buffers)
        if size > limit:
            text = f"a message of {size} bytes, the limit is {limit} bytes"
            self.cancel()
            raise failure("RESOURCE_EXHAUSTED", text)
        before = b"" if self._stream is not None else await self._open(ends=False)
        assert self._connection is not None
        assert self._stream is not None
        try:
            await send_message(self._connection, self._stream, buffers, before=before, ends=ends)
        except RpcFailedError:
            # The peer may have answered before it heard everything; receive() tells.
            if self._stream.trailers is None:
                raise
        except BaseException:
            self.cancel()
            raise

    async def end(self) -> None:
        """Say that no message follows."""
        if self._stream is None:
            opening = await self._open(ends=True)
            assert self._connection is not None
            self._connection.pump.write(opening)
            self._connection.advance(self._stream_now(), life.SEND_END)
        elif self._stream.state in life.WE_SEND:
            assert self._connection is not None
            end = frames.head(0, frames.DATA, frames.END_STREAM, self._stream.stream_id)
            self._connection.pump.write(end)
            self._connection.advance(self._stream, life.SEND_END)

    def _stream_now(self) -> Stream:
        assert self._stream is not None
        return self._stream

    async def receive(self) -> Message | None:
        """The next message; None once the call ended well.  Raises RpcFailedError otherwise."""
        if self._stream is None:
            # Stubs that send many messages send and receive in two tasks, begun in any order.
            self._opened = self._opened or trio.Event()
            await self._opened.wait()
        connection, stream = self._connection, self._stream_now()
        assert connection is not None
        try:
            while (message := connection.take(stream)) is None:
                if stream.peer_ended:
                    connection.release(stream)
                    error = outcome(stream)
                    if error is not None:
                        raise error
                    return None
                stream.arrived = trio.Event()
                await stream.arrived.wait()
            return message
        except BaseException:
            self.cancel()
            raise

    def trailing_metadata(self) -> Metadata:
        """What the peer sent with its status; empty before the end."""
        trailers = self._stream_now().trailers
        return () if trailers is None else decode_metadata(trailers)

    def cancel(self) -> None:
        """Drop the call; a peer still at work on it is told to stop."""
        connection, stream = self._connection, self._stream
        if connection is None or stream is None:
            return
        if not stream.is_over:
            connection.reset(stream, frames.CANCEL)
            if connection.heard_at < self._begun_at:
                # Not a byte since the call began: is anybody there?
                probe(connection, trio.current_time())
        connection.release(stream)

    def abandon(self) -> None:
        """cancel() from outside Trio's run, where nothing may be asked of it."""
        stream = self._stream
        if stream is not None and not stream.is_over and _is_in_trio():
            self.cancel()

    async def _open(self, *, ends: bool) -> bytes:
        """Get a stream; returns the HEADERS frame that must be written before anything waits."""
        channel = self._channel
        while True:
            connection = await channel.connected()
            try:
                stream = await connection.open_stream(
                    max_message_bytes=channel.limits.max_message_bytes
                )
                break
            except RpcFailedError:
                # It began to drain while we waited for a free stream: dial anew.
                if not connection.is_going or connection.closed is not None:
                    raise
        stream.memory = self._memory
        self._connection, self._stream = connection, stream
        if self._opened is not None:
            self._opened.set()
        self._begun_at = trio.current_time()
        block = request_head(self._path, channel.authority, channel.scheme)
        deadline = trio.current_effective_deadline()
        if deadline < math.inf:
            left_s = max(0.0, deadline - self._begun_at)
            block += timeout_field(format_timeout(left_s))
        block += channel.metadata_block + self._metadata
        return connection.headers_frame(stream, block, ends=ends)


def _is_in_trio() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def outcome(stream: Stream) -> RpcFailedError | None:
    """How a call ended; None when it ended well."""
    trailers = stream.trailers
    if trailers is None:
        if stream.failure is not None:
            return again(stream.failure)
        return failure("INTERNAL", "the peer ended the call without a status")
    status = find(trailers, "grpc-status")
    if status is None:
        http_status = find(trailers, ":status")
        if http_status is not None and http_status != "200":
            return failure_of_http(http_status)
        return failure("UNKNOWN", "the peer ended the call without a grpc-status")
    code = int(status) if status.isascii() and status.isdigit() and len(status) < 4 else 2
    if code:
        return failure_of_code(code, unquote_text(find(trailers, "grpc-message") or ""))
    return stream.failure
