"""Stub methods over a channel, in two forms: our own, and the stream purerpc's stubs drive.

Ours close a call the moment its iterator is closed; purerpc's stock stubs leave that to the
garbage collector.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import purerpc
from google.protobuf.message import DecodeError
from purerpc.grpclib.events import ResponseEnded
from purerpc.grpclib.status import Status, StatusCode
from purerpc.rpc import Cardinality, RPCSignature

from kakeya.errors import Refused
from kakeya.rpc.call import OutgoingCall
from kakeya.rpc.headers import Metadata
from kakeya.rpc.message import Buffer, Form, buffers_of, form_of
from kakeya.rpc.status import failure

if TYPE_CHECKING:
    from kakeya.rpc.channel import Channel

GivenMetadata = Iterable[tuple[str, str | bytes]] | None


class Client:
    """Makes the methods of one service's stub."""

    def __init__(self, service: str, channel: Channel) -> None:
        self._service = service
        self._channel = channel

    def get_method_stub(self, name: str, signature: RPCSignature) -> Any:
        """A callable of the form that purerpc's stub of this cardinality has."""
        path = f"/{self._service}/{name}"
        form = form_of(signature.response_type, self._channel.readers)
        if signature.cardinality is Cardinality.UNARY_UNARY:
            return UnaryMethod(self._channel, path, form)
        if signature.cardinality is Cardinality.UNARY_STREAM:
            return StreamingMethod(self._channel, path, form)
        # Callers that stream are rare here (reflection): purerpc's own stubs will do.
        return purerpc.Client(self._service, self._channel).get_method_stub(name, signature)


class UnaryMethod:
    """One message there, one back."""

    def __init__(self, channel: Channel, path: str, form: Form) -> None:
        self._channel = channel
        self._path = path
        self._form = form

    async def __call__(self, message: Any, *, metadata: GivenMetadata = None) -> Any:
        """The answer.  Raises RpcFailedError."""
        call = OutgoingCall(
            self._channel, self._path, tuple(metadata or ()), memory=self._form.memory
        )
        await call.send(buffers_of(message), ends=True)
        answer = await call.receive()
        if answer is None:
            raise failure("INTERNAL", "the peer answered without a message")
        parsed = parse(answer, self._form, call)
        del answer
        if await call.receive() is not None:
            call.cancel()
            raise failure("INTERNAL", "the peer answered with more than one message")
        return parsed


class StreamingMethod:
    """One message there, any number back."""

    def __init__(self, channel: Channel, path: str, form: Form) -> None:
        self._channel = channel
        self._path = path
        self._form = form

    async def __call__(self, message: Any, *, metadata: GivenMetadata = None) -> AsyncIterator[Any]:
        """The answers as they come; closing the iterator ends the call.  Raises RpcFailedError."""
        call = OutgoingCall(
            self._channel, self._path, tuple(metadata or ()), memory=self._form.memory
        )
        try:
            await call.send(buffers_of(message), ends=True)
            while (answer := await call.receive()) is not None:
                yield parse(answer, self._form, call)
        finally:
            call.cancel()


def parse(payload: Buffer, form: Form, call: OutgoingCall) -> Any:
    """The message in these bytes.  Raises RpcFailedError, the call then is over."""
    try:
        return form.read(payload)
    except DecodeError:
        call.cancel()
        raise failure("INTERNAL", "the peer's answer does not parse") from None
    except Refused as refused:
        call.cancel()
        raise failure(refused.status, f"the peer's answer: {refused.why}") from None


class PurerpcStream:
    """A call in the form that purerpc's own stubs (`purerpc.wrappers`) drive.

    The first message waits for what follows it, so that a unary call leaves in one write.
    """

    def __init__(self, channel: Channel, path: str, metadata: Metadata) -> None:
        self._call = OutgoingCall(channel, path, metadata)
        self._channel = channel
        self._form: Form | None = None
        self._held: Sequence[Buffer] | None = None
        self._is_open = False
        self._is_receiving = False
        self.end_stream_event: ResponseEnded | None = None

    def __del__(self) -> None:
        # The last resort: a stock stub's iterator that was dropped tells nobody else.
        self._call.abandon()

    def expect_message_type(self, message_type: Any) -> None:
        self._form = form_of(message_type, self._channel.readers)

    async def send_message(self, message: Any) -> None:
        payload = buffers_of(message)
        if self._is_open or self._is_receiving or self._held is not None:
            await self._flush()
            self._is_open = True
            await self._call.send(payload, ends=False)
        else:
            self._held = payload

    async def close(self) -> None:
        """No message follows."""
        if self._held is not None:
            payload, self._held = self._held, None
            self._is_open = True
            await self._call.send(payload, ends=True)
        else:
            self._is_open = True
            await self._call.end()

    async def _flush(self) -> None:
        if self._held is not None:
            payload, self._held = self._held, None
            self._is_open = True
            await self._call.send(payload, ends=False)

    async def receive_message(self) -> Any:
        """The next answer, None at the end.  Raises RpcFailedError."""
        self._is_receiving = True
        await self._flush()
        answer = await self._call.receive()
        if answer is None:
            self.end_stream_event = ResponseEnded(0, Status(StatusCode.OK))
            return None
        assert self._form is not None
        return parse(answer, self._form, self._call)
