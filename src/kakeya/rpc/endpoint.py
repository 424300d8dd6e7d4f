"""The serving side: generated services on connections, a cancel scope per call, one error mapping.

A handler is cancelled by RST_STREAM, by the end of its connection, and by the caller's deadline.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import purerpc
import structlog
import trio
from google.protobuf.message import DecodeError
from purerpc.rpc import Cardinality

from kakeya.config.rpc import RpcLimits
from kakeya.errors import STATUS_NAMES, Refused, demand
from kakeya.rpc.flow import Budget
from kakeya.rpc.headers import (
    RESPONSE_HEAD,
    TRAILERS_OK,
    Metadata,
    Request,
    http_answer,
)
from kakeya.rpc.message import Buffer, Form, Readers, buffers_of, form_of, size_of
from kakeya.rpc.outbound import answer, answer_block, end_well, send_message
from kakeya.rpc.status import RpcFailedError, failure, status_text
from kakeya.rpc.stream import Stream
from kakeya.rpc.wire import Connection

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call before its message: handed to `admit` and to handlers that ask."""

    service: str
    method: str
    # The caller's metadata, keys included: never log it.
    metadata: Metadata = field(repr=False)
    peer_address: str
    # Who the caller proved to be by its certificate; "" when it did not.
    principal: str
    # When the caller stops waiting (trio's clock, s), or inf.
    deadline: float

    @property
    def custom_metadata(self) -> Metadata:
        """The name purerpc gives to it."""
        return self.metadata


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection; `principal` is who it proved to be, or ""."""

    address: str = ""
    principal: str = ""


Admit = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class Method:
    """One method that is served."""

    handler: Callable[..., Any]
    form: Form
    takes_many: bool
    gives_many: bool
    max_message_bytes: int


class Endpoint:
    """Serves purerpc services on any number of connections.

    `max_message_bytes` overrides the limit for single services, by their full name; `readers` read
    the requests of the types they are for, in place of protobuf's own parser.
    """

    def __init__(
        self,
        services: Sequence[purerpc.Service],
        *,
        limits: RpcLimits,
        admit: Admit | None = None,
        max_message_bytes: Mapping[str, int] | None = None,
        budget: Budget | None = None,
        readers: Readers | None = None,
    ) -> None:
        self.limits = limits
        self._admit = admit
        self._budget = budget or Budget(limits.node_budget_bytes)
        self._scratch = bytearray(limits.read_bytes)
        self._connections: dict[Connection, Peer] = {}
        self._is_draining = False
        self._emptied = trio.Event()
        sizes = max_message_bytes or {}
        self._methods: dict[tuple[str, str], Method] = {}
        for service in services:
            size = sizes.get(service.name, limits.max_message_bytes)
            for name, bound in service.methods.items():
                cardinality = bound.signature.cardinality
                self._methods[service.name, name] = Method(
                    bound.method_fn,
                    form_of(bound.signature.request_type, readers or {}),
                    cardinality in (Cardinality.STREAM_UNARY, Cardinality.STREAM_STREAM),
                    cardinality in (Cardinality.UNARY_STREAM, Cardinality.STREAM_STREAM),
                    size,
                )

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    @property
    def num_calls(self) -> int:
        """Calls whose streams are open."""
        return sum(len(connection.streams) for connection in self._connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages held for all connections."""
        return self._budget.held_bytes

    async def serve_stream(self, stream: trio.abc.Stream, peer: Peer) -> None:
        """Serve one connection until it ends; closes the stream."""
        if len(self._connections) >= self.limits.max_connections or self._is_draining:
            await trio.aclose_forcefully(stream)
            return
        connection = Connection(
            stream,
            limits=self.limits,
            node_budget=self._budget,
            scratch=self._scratch,
            accept=self._accept,
        )
        self._connections[connection] = peer
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            if not self._connections:
                self._emptied.set()

    def go_away(self) -> None:
        """Let the calls in progress end and ask every peer to make no new ones."""
        self._is_draining = True
        for connection in list(self._connections):
            connection.go_away()

    async def drain(self) -> None:
        """go_away(), and wait until the calls in progress are done; the caller limits the wait."""
        self.go_away()
        while self._connections:
            self._emptied = trio.Event()
            await self._emptied.wait()

    def close(self) -> None:
        """End every connection now."""
        self._is_draining = True
        for connection in list(self._connections):
            connection.close(failure("UNAVAILABLE", "the node is stopping"))

    def _accept(self, connection: Connection, stream: Stream, request: Request) -> None:
        """A peer opened a call: refuse it on the spot or start its handler."""
        if request.http_status:
            answer_block(connection, stream, http_answer(request.http_status))
            return
        peer = self._connections[connection]
        call = Call(
            request.service,
            request.method,
            request.metadata,
            peer.address,
            peer.principal,
            stream.opened_at + request.timeout_s,
        )
        method = self._methods.get((request.service, request.method))
        try:
            demand(not request.fault_status, request.fault_status or "OK", request.fault_text)
            demand(method is not None, "UNIMPLEMENTED", f"no method {_shown(request)} here")
            if self._admit is not None:
                self._admit(call)
        except Refused as refused:
            answer(connection, stream, STATUS_NAMES.index(refused.status), refused.why)
            return
        except Exception:
            log.exception("admit failed", service=request.service, method=request.method)
            answer(connection, stream, STATUS_NAMES.index("INTERNAL"), "internal error")
            return
        assert method is not None
        stream.memory = method.form.memory
        stream.one_message = not method.takes_many
        stream.max_message_bytes = method.max_message_bytes
        connection.num_handlers += 1
        connection.spawn(self._handle, connection, stream, call, method)

    async def _handle(
        self, connection: Connection, stream: Stream, call: Call, method: Method
    ) -> None:
        """The contained task of one call: nothing but its own cancellation leaves it."""
        status, text = "OK", ""
        try:
            with trio.CancelScope(deadline=call.deadline) as scope:
                stream.scope = scope
                if stream.is_over:
                    return
                try:
                    await _serve(connection, stream, call, method)
                except Exception as error:
                    status, text = told_to_the_caller(error)
                    if status == "INTERNAL" and text == INTERNAL_TEXT:
                        log.exception("a handler failed", service=call.service, method=call.method)
            if scope.cancelled_caught:
                status, text = "DEADLINE_EXCEEDED", "the call's deadline passed"
            if status != "OK":
                answer(connection, stream, STATUS_NAMES.index(status), text)
        finally:
            connection.num_handlers -= 1
            connection.release(stream)


INTERNAL_TEXT = "internal error"


def told_to_the_caller(error: Exception) -> tuple[str, str]:
    """Status and text for what a handler raised: Refused as it says, anything else a fixed text."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, Refused):
        return error.status, error.why
    if isinstance(error, RpcFailedError):
        return str(error.status.status_code.name), status_text(error)
    if isinstance(error, NotImplementedError):
        return "UNIMPLEMENTED", "this method is not served here"
    return "INTERNAL", INTERNAL_TEXT


def _shown(request: Request) -> str:
    return f"{request.service}/{request.method}"[:200]


async def _serve(connection: Connection, stream: Stream, call: Call, method: Method) -> None:
    if method.takes_many:
        asked: Any = _each_message(connection, stream, method)
    else:
        asked = await _one_message(connection, stream, method)
    if not method.gives_many:
        reply = await method.handler(asked, request=call)
        payload = _checked(reply, method)
        await send_message(
            connection,
            stream,
            payload,
            before=_head(connection, stream),
            ends=False,
            after=connection.headers_frame(stream, TRAILERS_OK, ends=True),
        )
        end_well(connection, stream)
        return
    replies = method.handler(asked, request=call)
    if not hasattr(replies, "__aiter__"):
        await replies
        raise Refused("UNIMPLEMENTED", "this method is not served here")
    async with aclosing(replies):
        async for reply in replies:
            payload = _checked(reply, method)
            before = b"" if stream.sent_head else _head(connection, stream)
            await send_message(connection, stream, payload, before=before, ends=False)
    answer(connection, stream, 0, "")


def _head(connection: Connection, stream: Stream) -> bytes:
    stream.sent_head = True
    return connection.headers_frame(stream, RESPONSE_HEAD, ends=False)


def _checked(reply: Any, method: Method) -> Sequence[Buffer]:
    # ByteSize() would serialize it once more.
    payload = buffers_of(reply)
    size, limit = size_of(payload), method.max_message_bytes
    demand(
        size <= limit,
        "RESOURCE_EXHAUSTED",
        f"the answer has {size} bytes, the limit is {limit} bytes",
    )
    return payload


async def _one_message(connection: Connection, stream: Stream, method: Method) -> Any:
    """The single request of a call, once the caller said that no other follows."""
    while not stream.peer_ended:
        stream.arrived = trio.Event()
        await stream.arrived.wait()
    payload = connection.take(stream)
    demand(payload is not None, "INVALID_ARGUMENT", "the call carries no message")
    return _parsed(payload, method)


async def _each_message(
    connection: Connection, stream: Stream, method: Method
) -> AsyncIterator[Any]:
    while True:
        payload = connection.take(stream)
        if payload is not None:
            yield _parsed(payload, method)
        elif stream.peer_ended:
            return
        else:
            stream.arrived = trio.Event()
            await stream.arrived.wait()


def _parsed(payload: Any, method: Method) -> Any:
    try:
        return method.form.read(payload)
    except DecodeError:
        raise Refused("INVALID_ARGUMENT", "the message does not parse") from None
