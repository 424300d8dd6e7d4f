"""One HTTP/1.1 connection: requests in whole, answers out, within the limits of time and size.

h11 decides what the bytes mean; here they are read and written.  Knows no route.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import trio

from kakeya.config.http import HttpLimits
from kakeya.http.messages import Answer, Fields, Request

READ_BYTES = 64 << 10
SERVER = b"kakeya"
# What a client needs to notice that it was refused in the middle of its request.
FAREWELL_S = 1.0


class BadRequest(Exception):  # noqa: N818 - it states what happened
    """The request cannot be read; the connection ends with this answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


class Wire:
    """Reads requests from one stream and answers them; an Outlet for the current one."""

    def __init__(self, stream: trio.abc.Stream, limits: HttpLimits, *, peer: str) -> None:
        self._stream = stream
        self._limits = limits
        self._peer = peer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.max_header_bytes)
        self._sending = trio.Lock()
        self._pipelined = bytearray()
        self._is_over = False
        self._is_head = False
        self.sent_at_s = trio.current_time()

    async def next_request(self, began: Callable[[], object]) -> Request | None:
        """The next request, whole; None when the client is done.  `began` is called once it begins.

        Raises BadRequest for what cannot be read or comes too slowly or is too large, and
        OSError when the connection breaks.
        """
        head = await self._head(began)
        if head is None:
            return None
        return await self._with_body(head)

    async def watch(self) -> None:
        """Return when the client has gone while its request is answered."""
        while len(self._pipelined) <= self._limits.max_pipelined_bytes:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            self._pipelined += data
        # It sends without waiting for answers.  Whether it is there shows when we write.
        await trio.sleep_forever()

    @property
    def can_go_on(self) -> bool:
        """Whether another request may follow on this connection, once it was asked."""
        return (
            not self._is_over
            and self._h11.our_state is h11.DONE
            and self._h11.their_state is h11.DONE
        )

    @property
    def may_answer(self) -> bool:
        """Whether an answer may be begun still."""
        return self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def go_on(self) -> None:
        self._h11.start_next_cycle()

    def end_after_this(self) -> None:
        """Say `connection: close` in answers from now on."""
        self._is_over = True

    @property
    def is_begun(self) -> bool:
        return not self.may_answer

    async def whole(self, answer: Answer) -> None:
        fields = list(answer.fields)
        if answer.status != 204:
            fields.append(("content-length", str(len(answer.body))))
        if answer.content_type:
            fields.append(("content-type", answer.content_type))
        head = self._response(answer.status, fields)
        body = [] if self._is_head or not answer.body else [h11.Data(data=answer.body)]
        async with self._sending:
            await self._write(head, *body, h11.EndOfMessage())

    async def begin(self, status: int, fields: Fields) -> None:
        async with self._sending:
            if not self.is_begun:
                await self._write(self._response(status, fields))

    async def piece(self, data: bytes) -> None:
        async with self._sending:
            await self._write(h11.Data(data=data))

    async def end(self) -> None:
        async with self._sending:
            await self._write(h11.EndOfMessage())

    async def farewell(self) -> None:
        """Let a client that is still sending read its answer: a close now could undo it."""
        with trio.move_on_after(FAREWELL_S):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            while await self._stream.receive_some(READ_BYTES):
                pass

    def _response(self, status: int, fields: Fields) -> h11.Response:
        named = [(b"server", SERVER), *((n.encode(), v.encode("latin-1")) for n, v in fields)]
        if self._is_over:
            named.append((b"connection", b"close"))
        return h11.Response(status_code=status, headers=named)

    async def _write(self, *events: Any) -> None:
        data = b"".join(self._h11.send(event) or b"" for event in events)
        with self._within(self._limits.stall_s):
            await self._stream.send_all(data)
        self.sent_at_s = trio.current_time()

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Raise OSError for a stream that broke or takes longer than `seconds`."""
        try:
            with trio.fail_after(seconds):
                yield
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            raise OSError("the client has gone") from error

    async def _head(self, began: Callable[[], object]) -> h11.Request | None:
        """The head of the next request; waits `idle_s` for its first byte, then `header_s`."""
        if not self._pipelined and not self._h11.trailing_data[0]:
            data = b""
            with trio.move_on_after(self._limits.idle_s):
                data = await self._read()
            if not data:
                return None
        began()
        with trio.move_on_after(self._limits.header_s):
            event = await self._event()
            if isinstance(event, h11.Request):
                self._demand_short(event)
                return event
            return None  # the connection was closed
        raise BadRequest(408, f"the request's head was not here within {self._limits.header_s} s")

    def _demand_short(self, head: h11.Request) -> None:
        # h11 bounds only what is not whole yet.
        most = self._limits.max_header_bytes
        num_bytes = len(head.target) + sum(len(n) + len(v) for n, v in head.headers)
        if num_bytes > most:
            raise BadRequest(431, f"the head has {num_bytes} bytes, the limit is {most}")

    async def _with_body(self, head: h11.Request) -> Request:
        limits = self._limits
        if head.http_version not in (b"1.0", b"1.1"):
            raise BadRequest(505, "this door speaks HTTP/1.1")
        length = dict(head.headers).get(b"content-length", b"0")
        self._demand_small(int(length))
        if self._h11.they_are_waiting_for_100_continue:
            await self._write(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        started_s = trio.current_time()
        while True:
            left_s = limits.body_s + len(body) / limits.min_body_bytes_per_s
            with trio.move_on_at(started_s + left_s) as patience:
                event = await self._event()
            if patience.cancelled_caught:
                raise BadRequest(408, "the request's body comes too slowly")
            if isinstance(event, h11.EndOfMessage):
                return self._request(head, bytes(body))
            if not isinstance(event, h11.Data):
                raise OSError("the client left in the middle of its request")
            body += event.data
            self._demand_small(len(body))

    def _demand_small(self, num_bytes: int) -> None:
        most = self._limits.max_body_bytes
        if num_bytes > most:
            raise BadRequest(413, f"the body has {num_bytes} bytes, the limit is {most}")

    def _request(self, head: h11.Request, body: bytes) -> Request:
        fields = [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers]
        self._is_head = head.method == b"HEAD"
        self.sent_at_s = trio.current_time()
        path = head.target.decode("ascii").partition("?")[0]
        return Request(head.method.decode("ascii"), path, fields, body, self._peer)

    async def _event(self) -> Any:
        """The next event of h11.  Raises BadRequest for what is no HTTP."""
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise BadRequest(error.error_status_hint, str(error)) from None
            if event is not h11.NEED_DATA:
                return event
            await self._read()

    async def _read(self) -> bytes:
        """Hand h11 what comes next; empty at the end of the stream."""
        if self._pipelined:
            data = bytes(self._pipelined)
            self._pipelined.clear()
        else:
            try:
                data = bytes(await self._stream.receive_some(READ_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise OSError("the client has gone") from error
        try:
            self._h11.receive_data(data)
        except RuntimeError as error:
            raise OSError("the client had said that it is done") from error
        return data


__all__ = ["BadRequest", "Wire"]
