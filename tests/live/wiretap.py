"""A relay between two nodes that knows which call passes: it keeps a trace, and can strike.

HTTP/2 without TLS.  A request is handed on when all of it has come, so that what a test does then
(kill -9 of whom it is for) happens in the middle of the call.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import hpack

PREFACE_LEN, HEAD_LEN = 24, 9
DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32


@dataclass(frozen=True)
class Passed:
    """All of a request or of a reply has passed: its method's name, and which call it is."""

    at_s: float
    what: str  # "asked" or "answered"
    method: str
    call: tuple[int, int]  # connection, stream


@dataclass
class Wiretap:
    """Listens at `address`, hands on to `target` ("": turns everybody away).

    on_asked(method, number) is called before the number-th request of a method is handed on.
    """

    target: str = ""
    on_asked: Callable[[str, int], None] = lambda method, number: None
    trace: list[Passed] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    _num_links: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def asked(self, method: str) -> list[Passed]:
        with self._lock:
            return [p for p in self.trace if (p.what, p.method) == ("asked", method)]

    def serve(self) -> None:
        with suppress(OSError):  # closed: over
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._link, args=(client,), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def note(self, what: str, method: str, call: tuple[int, int]) -> int:
        """How many of these there have been."""
        with self._lock:
            self.trace.append(Passed(time.monotonic(), what, method, call))
            return sum((p.what, p.method) == (what, method) for p in self.trace)

    def _link(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)))
        except (OSError, ValueError):
            client.close()
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._num_links += 1
            link = _Link(self, self._num_links)
        back = threading.Thread(target=link.hand_on, args=(server, client, "answered"), daemon=True)
        back.start()
        link.hand_on(client, server, "asked")


@dataclass
class _Link:
    tap: Wiretap
    number: int
    methods: dict[int, str] = field(default_factory=dict)  # by stream

    def hand_on(self, source: socket.socket, sink: socket.socket, what: str) -> None:
        reader, headers, block = source.makefile("rb"), hpack.Decoder(), b""
        try:
            if what == "asked":
                sink.sendall(reader.read(PREFACE_LEN))
            while len(head := reader.read(HEAD_LEN)) == HEAD_LEN:
                body = reader.read(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
                if kind in (HEADERS, CONTINUATION):
                    block += _fragment(kind, flags, body)
                    if flags & END_HEADERS:
                        self._name(stream, headers.decode(block))
                        block = b""
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    method = self.methods.get(stream, "")
                    number = self.tap.note(what, method, (self.number, stream))
                    if what == "asked":
                        self.tap.on_asked(method, number)
                sink.sendall(head + body)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _name(self, stream: int, headers: Iterator[tuple[str, str]]) -> None:
        for name, value in headers:
            if name == ":path":
                self.methods[stream] = value.rpartition("/")[2]


def _fragment(kind: int, flags: int, body: bytes) -> bytes:
    if kind == CONTINUATION:
        return body
    end = len(body)
    if flags & PADDED:
        end -= body[0]
        body, end = body[1:], end - 1
    return body[5 if flags & PRIORITY else 0 : end]


@contextmanager
def wiretap(target: str = "") -> Iterator[Wiretap]:
    tap = Wiretap(target)
    threading.Thread(target=tap.serve, daemon=True).start()
    try:
        yield tap
    finally:
        tap.close()


__all__ = ["Passed", "Wiretap", "wiretap"]
