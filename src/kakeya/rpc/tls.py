"""TLS on a socket, in plain steps: what to send for some bytes, what some bytes received mean.

trio.SSLStream hands over one record (16 KB) at a time; a pump that does the steps itself keeps its
fast path on the socket and reads large messages straight into their memory.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import trio

from kakeya.rpc.message import Buffer

# The most that one record carries.
RECORD_BYTES = 16_384
_READ_BYTES = 64 << 10


class TlsStream(trio.abc.Stream):
    """A TLS connection over `inner`; shake_hands() comes first."""

    def __init__(
        self,
        inner: trio.SocketStream,
        context: ssl.SSLContext,
        *,
        is_server: bool,
        server_hostname: str | None = None,
    ) -> None:
        self.inner = inner
        # The peer said that it sends no more.
        self.has_ended = False
        self._received = ssl.MemoryBIO()
        self._to_send = ssl.MemoryBIO()
        self._engine = context.wrap_bio(
            self._received, self._to_send, server_side=is_server, server_hostname=server_hostname
        )

    async def shake_hands(self) -> None:
        """Agree on keys and check certificates.  Raises OSError; the caller limits the wait."""
        while True:
            try:
                self._engine.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._receive():
                    raise OSError("the peer hung up during the TLS handshake") from None
            except ssl.SSLError:
                await self._flush()  # the alert tells the peer why
                raise
            else:
                break
        await self._flush()
        if self._engine.selected_alpn_protocol() not in (None, "h2"):
            raise OSError("the peer does not speak HTTP/2 over TLS")

    async def _flush(self) -> None:
        try:
            if self._to_send.pending:
                await self.inner.send_all(self._to_send.read())
        except trio.BrokenResourceError as error:
            raise OSError("the peer hung up during the TLS handshake") from error

    async def _receive(self) -> bool:
        try:
            got = await self.inner.receive_some(_READ_BYTES)
        except trio.BrokenResourceError as error:
            raise OSError("the peer hung up during the TLS handshake") from error
        self._received.write(got)
        return bool(got)

    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The verified certificate of the peer, as ssl reports it."""
        return self._engine.getpeercert()

    def seal(self, buffers: Sequence[Buffer]) -> bytes:
        """What to send for these plain bytes, in as few records as they fit in."""
        for run in runs(buffers):
            at, size = 0, len(run)
            while at < size:
                at += self._engine.write(memoryview(run)[at:])
        return self._to_send.read()

    def put(self, view: memoryview) -> None:
        """Take bytes as they were received."""
        self._received.write(view)

    def read_into(self, room: memoryview) -> int:
        """Plain bytes into `room`: how many, all that are there or fit.

        Less than fit: more must be received first, or the peer has ended its side (`has_ended`).
        Raises OSError for a bad record.
        """
        got, size = 0, len(room)
        try:
            while got < size and not self.has_ended:
                # One record at most; none after the peer's last.
                read: int = self._engine.read(size - got, room[got:])  # type: ignore[arg-type, assignment]
                got += read
                self.has_ended = not read
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return got

    def answers(self) -> bytes:
        """What TLS itself wants to say after reading (key updates); mostly nothing."""
        return self._to_send.read() if self._to_send.pending else b""

    # A Trio stream like any other, for those that do not look inside.

    async def send_all(self, data: Buffer) -> None:
        await self.inner.send_all(self.seal([data]))

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        room = memoryview(bytearray(max_bytes or _READ_BYTES))
        while True:
            got = self.read_into(room)
            if got:
                return bytes(room[:got])
            if self.has_ended or not await self._receive():
                return b""

    async def aclose(self) -> None:
        await self.inner.aclose()


def runs(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in runs that fill whole records, but for the last; little is copied."""
    if len(buffers) == 1:
        yield buffers[0]
        return
    begun: list[memoryview] = []
    left = RECORD_BYTES
    for buffer in buffers:
        view = memoryview(buffer)
        if begun:
            begun.append(view[:left])
            view, left = view[left:], left - len(begun[-1])
            if left:
                continue
            yield b"".join(begun)
            begun, left = [], RECORD_BYTES
        whole = len(view) - len(view) % RECORD_BYTES
        if whole:
            yield view[:whole]
        if whole < len(view):
            begun.append(view[whole:])
            left -= len(begun[-1])
    if begun:
        yield b"".join(begun)
