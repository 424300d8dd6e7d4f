"""Moves a connection's bytes: out of a queue, and into whoever parses them.

Sockets take a fast path: what fits goes out in the same moment it is written (writev), and large
messages are read straight into their own memory (readv); with TLS on the socket likewise.  Any
other Trio stream (a link in memory) goes through send_all and receive_some.

Knows nothing of frames.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.message import Buffer
from kakeya.rpc.tls import RECORD_BYTES, TlsStream

# Read this much before other tasks get a turn: about 0.5 ms of copying.
_TURN_BYTES = 1 << 20
# Below this a copy through the parser is as fast as a second vector.
_MIN_DIRECT_BYTES = 32 << 10
_MAX_VECTORS = 32
_HEAD_BYTES = 9
_JOIN_BYTES = 64 << 10


class Sink(Protocol):
    """What a pump feeds."""

    def feed(self, view: memoryview) -> None: ...

    def direct(self) -> memoryview | None:
        """Memory that the very next bytes belong into, as many as it is long; None: use feed."""
        ...

    def placed(self, num_bytes: int) -> None:
        """That many bytes were read into direct()."""
        ...


class Pump:
    """Both directions of one stream; `lost` is called once when sending fails."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        limits: RpcLimits,
        scratch: bytearray,
        lost: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._limits = limits
        self._scratch = scratch
        self._lost = lost
        self._backlog: deque[Buffer] = deque()
        self._wake = trio.Event()
        self._drained: trio.Event | None = None
        self._is_closed = False
        self.backlog_bytes = 0
        # When bytes last left, while some wait (s).
        self.progress_at = 0.0
        self._socket: trio.socket.SocketType | None = None
        self._fd = -1
        self._tls = stream if isinstance(stream, TlsStream) else None
        tcp = stream if self._tls is None else self._tls.inner
        if isinstance(tcp, trio.SocketStream):
            self._socket = tcp.socket
            self._fd = tcp.socket.fileno()
            if tcp.socket.family in (socket.AF_INET, socket.AF_INET6):
                tcp.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """No byte is read or written from now on; the stream itself is closed by its owner."""
        self._is_closed = True
        self._backlog.clear()
        self.backlog_bytes = 0
        if self._drained is not None:
            self._drained.set()

    def write(self, *buffers: Buffer) -> None:
        """Queue bytes, or send them at once where the socket takes them.  Never waits."""
        if self._is_closed:
            return
        if self._tls is not None:
            buffers = (self._tls.seal(buffers),)
        self._write_sealed(buffers)

    def _write_sealed(self, buffers: tuple[Buffer, ...]) -> None:
        if self._backlog or self._fd < 0:
            self._queue(buffers, 0)
            return
        if len(buffers) > _MAX_VECTORS:
            buffers = (b"".join(buffers),)
        try:
            sent = os.writev(self._fd, buffers)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._fail()
            return
        if sent != sum(map(len, buffers)):
            self._queue(buffers, sent)

    def _queue(self, buffers: tuple[Buffer, ...], sent: int) -> None:
        if not self._backlog:
            self.progress_at = trio.current_time()
        for buffer in buffers:
            size = len(buffer)
            if sent >= size:
                sent -= size
                continue
            self._backlog.append(memoryview(buffer)[sent:] if sent else buffer)
            self.backlog_bytes += size - sent
            sent = 0
        self._wake.set()

    async def room(self) -> None:
        """Wait until less than the high-water mark is queued."""
        while self.backlog_bytes > self._limits.high_water_bytes and not self._is_closed:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    async def flush(self) -> None:
        """Wait until everything queued has left; the writer task must be running."""
        while self.backlog_bytes and not self._is_closed:
            self._drained = self._drained or trio.Event()
            await self._drained.wait()

    def _left(self, num_bytes: int) -> None:
        self.backlog_bytes -= num_bytes
        self.progress_at = trio.current_time()
        low = not self.backlog_bytes or self.backlog_bytes <= self._limits.high_water_bytes
        if low and self._drained is not None:
            self._drained.set()
            self._drained = None

    def _fail(self) -> None:
        if not self._is_closed:
            self.close()
            self._lost()

    async def write_all(self) -> None:
        """The writer task: sends what write() could not; ends when sending fails."""
        try:
            while not self._is_closed:
                if not self._backlog:
                    self._wake = trio.Event()
                    await self._wake.wait()
                elif self._socket is None:
                    await self._send_some()
                else:
                    await trio.lowlevel.wait_writable(self._socket)
                    self._write_some()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._fail()

    def _write_some(self) -> None:
        try:
            sent = os.writev(self._fd, list(islice(self._backlog, _MAX_VECTORS)))
        except (BlockingIOError, InterruptedError):
            return
        left = sent
        while left:
            size = len(self._backlog[0])
            if left >= size:
                self._backlog.popleft()
                left -= size
            else:
                self._backlog[0] = memoryview(self._backlog[0])[left:]
                left = 0
        self._left(sent)

    async def _send_some(self) -> None:
        buffer = self._backlog.popleft()
        size = len(buffer)
        if size < _JOIN_BYTES and self._backlog:
            parts = [buffer]
            while self._backlog and size + len(self._backlog[0]) <= _JOIN_BYTES:
                parts.append(self._backlog.popleft())
                size += len(parts[-1])
            buffer = b"".join(parts)
        await self._stream.send_all(buffer)
        # close() may have emptied the queue meanwhile.
        if not self._is_closed:
            self._left(size)

    async def read_all(self, sink: Sink) -> None:
        """Feed `sink` until the peer closes.  Raises what the stream or the sink raises."""
        if self._socket is not None and self._tls is not None:
            await self._read_tls(self._socket, self._tls, sink)
            return
        if self._socket is not None:
            await self._read_socket(self._socket, sink)
            return
        while not self._is_closed:
            got = await self._stream.receive_some(self._limits.read_bytes)
            if not got:
                return
            sink.feed(memoryview(got))

    async def _read_socket(self, sock: trio.socket.SocketType, sink: Sink) -> None:
        # The scratch memory is shared by all connections: nothing of it is kept past feed().
        scratch = memoryview(self._scratch)
        while not self._is_closed:
            await trio.lowlevel.wait_readable(sock)
            turn = _TURN_BYTES
            while turn > 0 and not self._is_closed:
                room = sink.direct()
                if room is not None and len(room) < _MIN_DIRECT_BYTES:
                    room = None
                # Behind a message's own memory only the next frame's head is wanted: what goes
                # through the scratch memory is copied twice.
                behind = scratch if room is None else scratch[:_HEAD_BYTES]
                asked = len(behind) + (0 if room is None else len(room))
                try:
                    got = os.readv(self._fd, [behind] if room is None else [room, behind])
                except (BlockingIOError, InterruptedError):
                    break
                if not got:
                    return
                turn -= got
                rest = got
                if room is not None:
                    direct = min(got, len(room))
                    room = None
                    sink.placed(direct)
                    rest -= direct
                if rest:
                    sink.feed(scratch[:rest])
                if got < asked:
                    break
            room = None

    async def _read_tls(self, sock: trio.socket.SocketType, tls: TlsStream, sink: Sink) -> None:
        scratch = memoryview(self._scratch)
        while not self._is_closed:
            # At first: what came right behind the handshake.
            self._open_records(tls, sink, scratch)
            if tls.has_ended:
                return
            answers = tls.answers()
            if answers:
                self._write_sealed((answers,))
            await trio.lowlevel.wait_readable(sock)
            try:
                got = os.readv(self._fd, [scratch])
            except (BlockingIOError, InterruptedError):
                continue
            if not got:
                return
            tls.put(scratch[:got])

    def _open_records(self, tls: TlsStream, sink: Sink, scratch: memoryview) -> None:
        """Feed all that was received."""
        # What goes through the scratch memory is copied twice: a record, then look again.
        scratch = scratch[:RECORD_BYTES]
        while not self._is_closed:
            direct = sink.direct()
            room = scratch if direct is None else direct
            got = tls.read_into(room)
            if got and direct is None:
                sink.feed(scratch[:got])
            elif got:
                sink.placed(got)
            if got < len(room):
                return
