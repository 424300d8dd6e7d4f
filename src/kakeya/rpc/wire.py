"""One HTTP/2 connection carrying gRPC calls, over any Trio stream, for either side.

One reader, one writer, one task that looks after the limits.  Everything a peer sends is caught
here; inbound.py judges what comes in, outbound.py sends for the calls.  The serving side gets its
calls through `accept`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc import frames, life
from kakeya.rpc.flow import Budget
from kakeya.rpc.frames import ConnectionFault
from kakeya.rpc.headers import NO_TABLE, Request
from kakeya.rpc.inbound import Inbound
from kakeya.rpc.pump import Pump
from kakeya.rpc.status import RpcFailedError, again, failure
from kakeya.rpc.stream import Message, Stream
from kakeya.rpc.watch import look_after

log = structlog.get_logger(__name__)

Accept = Callable[["Connection", Stream, Request], None]
# Streams that ended lately and may still get late frames.
_MAX_REMEMBERED = 1024


class Connection:
    """A connection and its calls; `accept` is None on the calling side.

    `streams` are the open ones by id; `closed` is why no call can be made any more.
    """

    def __init__(
        self,
        transport: trio.abc.Stream,
        *,
        limits: RpcLimits,
        node_budget: Budget,
        scratch: bytearray,
        accept: Accept | None = None,
        max_streams: int | None = None,
    ) -> None:
        self.limits = limits
        self.accept = accept
        self.is_client = accept is None
        self.streams: dict[int, Stream] = {}
        self.ended: dict[int, str] = {}
        self.closed: RpcFailedError | None = None
        self.budget = Budget(limits.connection_budget_bytes, node_budget)
        # What the peer allows us.
        self.window = frames.DEFAULT_WINDOW
        self.peer_initial_window = frames.DEFAULT_WINDOW
        self.peer_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.peer_max_streams = 100
        self.next_stream_id = 1
        self.last_peer_stream_id = 0
        # The last GOAWAY said so: no new calls on this connection.
        self.is_going = False
        self.last_served_id = frames.MAX_STREAM_ID
        self.num_handlers = 0
        self.started_at = trio.current_time()
        self.heard_at = self.started_at
        self.idle_since = self.started_at
        self.ping_sent_at = math.inf
        self.pump = Pump(transport, limits=limits, scratch=scratch, lost=self._lost)
        self.inbound = Inbound(self)
        self._transport = transport
        self._table_notice = NO_TABLE
        # Calls that wait for a stream, in their order, and streams promised to those just woken.
        self._waiting: deque[trio.Event] = deque()
        self._num_promised = 0
        self._nursery: trio.Nursery | None = None
        self._over = trio.Event()

    # ---- life

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the connection until it ends; closes the transport."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.greet()
                nursery.start_soon(self.pump.write_all)
                nursery.start_soon(look_after, self)
                task_status.started()
                nursery.start_soon(self._read)
                await self._over.wait()
                with trio.move_on_after(self.limits.farewell_s):
                    await self.pump.flush()
                nursery.cancel_scope.cancel()
        finally:
            self.close(failure("UNAVAILABLE", "the connection was closed on this side"))
            self.pump.close()
            await trio.aclose_forcefully(self._transport)

    async def _read(self) -> None:
        try:
            await self.pump.read_all(self.inbound)
            self.close(failure("UNAVAILABLE", "the peer closed the connection"))
        except ConnectionFault as fault:
            self.abort(fault)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._lost()
        except Exception:
            # Ours, not the peer's: it ends this connection, never the node.
            log.exception("a connection failed on our own mistake")
            self.abort(ConnectionFault(frames.INTERNAL_ERROR, "an internal error"))

    def greet(self) -> None:
        values = {
            frames.HEADER_TABLE_SIZE: 0,
            frames.MAX_CONCURRENT_STREAMS: self.limits.max_streams,
            frames.INITIAL_WINDOW_SIZE: self.limits.stream_window_bytes,
            frames.MAX_FRAME_SIZE: self.limits.max_frame_bytes,
            frames.MAX_HEADER_LIST_SIZE: self.limits.max_header_bytes,
        }
        if self.is_client:
            values[frames.ENABLE_PUSH] = 0
        extra = self.limits.connection_window_bytes - frames.DEFAULT_WINDOW
        self.pump.write(
            (frames.PREFACE if self.is_client else b"")
            + frames.settings(values)
            + (frames.window_update(0, extra) if extra > 0 else b"")
        )

    def _lost(self) -> None:
        self.close(failure("UNAVAILABLE", "the connection to the peer was lost"))

    def abort(self, fault: ConnectionFault) -> None:
        """Tell the peer what it did and end the connection."""
        if self.closed is None:
            # An idle connection is no news.
            tell = log.info if fault.code else log.debug
            tell("a connection ends on a fault", why=fault.why)
            self.pump.write(frames.goaway(self.last_peer_stream_id, fault.code))
            self.close(failure("UNAVAILABLE", f"the connection failed: {fault.why}"))

    def close(self, why: RpcFailedError) -> None:
        """End every call with `why`; run() says goodbye and returns."""
        if self.closed is None:
            self.closed = why
        for stream in list(self.streams.values()):
            stream.failure = stream.failure or why
            stream.state = life.RESET_LOCAL
            self.release(stream)
            if stream.scope is not None:
                stream.scope.cancel()
            stream.wake()
        self.streams.clear()
        self.wake_slots()
        self._over.set()

    def go_away(self) -> None:
        """Ask the peer to make no new calls here; those under way go on."""
        if not self.is_going and self.closed is None:
            self.is_going = True
            self.pump.write(frames.goaway(frames.MAX_STREAM_ID, frames.NO_ERROR))
            self.pump.write(frames.ping(b"draining"))
            # A peer that is gone answers neither: the way out does not wait for it.
            self.ping_sent_at = min(self.ping_sent_at, trio.current_time())
        self.close_when_done()

    def stop_admitting(self) -> None:
        """The peer has read our first GOAWAY: name the last call that will be served."""
        self.last_served_id = self.last_peer_stream_id
        self.pump.write(frames.goaway(self.last_served_id, frames.NO_ERROR))
        self.close_when_done()

    def close_when_done(self) -> None:
        calls_may_come = not self.is_client and self.last_served_id == frames.MAX_STREAM_ID
        if self.is_going and not self.streams and not calls_may_come and self.closed is None:
            self.close(failure("UNAVAILABLE", "the connection is going away"))

    def spawn(self, task: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a call's handler within the life of the connection."""
        assert self._nursery is not None
        self._nursery.start_soon(task, *args)

    # ---- streams

    def advance(self, stream: Stream, event: str) -> None:
        """Move a stream along the table.  Raises StreamFault or ConnectionFault."""
        if self.closed is not None:
            return  # the write before this may have found the connection lost
        outcome = life.step(stream.state, event)
        if outcome is not life.IGNORE:
            stream.state = outcome
            if outcome in life.ENDED:
                self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        if self.streams.pop(stream.stream_id, None) is None:
            return
        self.ended[stream.stream_id] = stream.state
        if len(self.ended) > _MAX_REMEMBERED:
            del self.ended[next(iter(self.ended))]
        self.wake_slots()
        if not self.streams:
            self.idle_since = trio.current_time()
            if self.is_going:
                self.close_when_done()

    def wake_slots(self) -> None:
        """Let as many waiting calls go on as the peer allows streams; all when it allows none."""
        is_ending = self.closed is not None or self.is_going
        while self._waiting and (is_ending or self._has_slot()):
            self._num_promised += 1
            self._waiting.popleft().set()

    def _has_slot(self) -> bool:
        return len(self.streams) + self._num_promised < self.peer_max_streams

    async def _slot(self) -> None:
        """Wait for the peer to allow one more stream.  Raises RpcFailedError."""
        limit = self.limits.max_waiting_calls
        if not self._waiting and (self._has_slot() or self.closed is not None or self.is_going):
            return
        if len(self._waiting) >= limit:
            text = f"{len(self._waiting)} calls wait for this peer, the limit is {limit}"
            raise failure("RESOURCE_EXHAUSTED", text)
        turn = trio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn.is_set():
                self._num_promised -= 1
                self.wake_slots()
            else:
                self._waiting.remove(turn)
            raise
        self._num_promised -= 1

    def release(self, stream: Stream) -> None:
        """Give back what the stream's messages hold of the budget, and drop them."""
        stream.drop()
        if stream.held_bytes:
            self.budget.give(stream.held_bytes)
            stream.held_bytes = 0

    async def open_stream(self, *, max_message_bytes: int) -> Stream:
        """A stream for a new call, as soon as the peer allows one more.  Raises RpcFailedError."""
        await self._slot()
        if self.closed is not None:
            raise again(self.closed)
        if self.is_going:
            raise failure("UNAVAILABLE", "the peer is going away")
        stream = Stream(
            self.next_stream_id,
            state=life.step(life.IDLE, life.SEND_HEADERS),
            window=self.peer_initial_window,
            recv_window=self.limits.stream_window_bytes,
            max_message_bytes=max_message_bytes,
            one_message=False,
            now=trio.current_time(),
        )
        self.streams[stream.stream_id] = stream
        self.next_stream_id += 2
        if self.next_stream_id >= frames.MAX_STREAM_ID:
            self.is_going = True
        return stream

    def headers_frame(self, stream: Stream, block: bytes, *, ends: bool) -> bytes:
        """A HEADERS frame (with CONTINUATION where it is long); the caller advances the stream."""
        block, self._table_notice = self._table_notice + block, b""
        flags = frames.END_STREAM if ends else 0
        size = self.peer_frame_bytes
        if len(block) <= size:
            flags |= frames.END_HEADERS
            return frames.head(len(block), frames.HEADERS, flags, stream.stream_id) + block
        pieces = [block[at : at + size] for at in range(0, len(block), size)]
        out = [frames.head(size, frames.HEADERS, flags, stream.stream_id), pieces[0]]
        for piece in pieces[1:]:
            last = frames.END_HEADERS if piece is pieces[-1] else 0
            out += [frames.head(len(piece), frames.CONTINUATION, last, stream.stream_id), piece]
        return b"".join(out)

    def reset(self, stream: Stream, code: int, *, keeps_messages: bool = False) -> None:
        """End a stream at once; late frames of the peer are ignored."""
        if stream.is_over:
            return
        self.pump.write(frames.reset(stream.stream_id, code))
        self.advance(stream, life.SEND_RST)
        if not keeps_messages:
            self.release(stream)
        stream.wake()

    # ---- what calls receive

    def take(self, stream: Stream) -> Message | None:
        """The next whole message, or None; opens the peer's window for the one after it.

        What a message holds of the budget is given back, unless the call can have only one: then
        it is held until release().
        """
        if not stream.inbox:
            return None
        message = stream.inbox.popleft()
        if not stream.one_message:
            self.budget.give(len(message))
            stream.held_bytes -= len(message)
            self._reopen(stream)
        return message

    def _reopen(self, stream: Stream) -> None:
        if stream.peer_ended:
            return
        base = self.limits.stream_window_bytes
        missing = stream.window_wanted(base) - stream.recv_window
        # Half a window at a time, but never leave a message waiting for less.
        if missing >= base // 2 or (missing > 0 and stream.is_mid_message and not stream.inbox):
            stream.recv_window += missing
            self.pump.write(frames.window_update(stream.stream_id, missing))
