"""The two calls a node makes to its peers, and what they carry: bytes in, bytes out.

A view is not decoded by the RPC layer: cards keep the bytes they came with, and those that did
not change are never parsed.
"""

from __future__ import annotations

from typing import Any, Protocol

import purerpc

from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb

SERVICE = "kakeya.v1.CapabilityService"


class CallFailed(Exception):  # noqa: N818 - it states what happened
    """A call brought no answer; `status` is a gRPC status name, `why` one line."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


class PeerCalls(Protocol):
    """Calls a peer within the current cancel scope's deadline.  Raises CallFailed."""

    async def exchange(self, grpc_address: str, view: bytes) -> bytes:
        """Send our view, return the peer's."""
        ...

    async def probe(self, grpc_address: str) -> bytes:
        """Return the peer's own card, as a view of one."""
        ...

    def drop_connections(self) -> None:
        """This machine's address changed: what was connected from the old one leads nowhere."""
        ...


class View:
    """Bytes that are an ExchangeCapabilitiesRequest, …Response or GetNodeCapabilityResponse.

    All three carry their cards in field 1.  Has what RPC stubs and services ask of a message.
    """

    DESCRIPTOR = pb.ExchangeCapabilitiesRequest.DESCRIPTOR
    __slots__ = ("content",)

    def __init__(self, content: bytes = b"") -> None:
        self.content = content

    @classmethod
    def FromString(cls, content: bytes) -> View:  # noqa: N802 - the messages' own name
        return cls(bytes(content))

    def ParseFromString(self, content: bytes) -> int:  # noqa: N802 - the messages' own name
        self.content = bytes(content)
        return len(self.content)

    def ByteSize(self) -> int:  # noqa: N802 - the messages' own name
        return len(self.content)

    def SerializeToString(self) -> bytes:  # noqa: N802 - the messages' own name
        return self.content


def signature_of(request_type: type[Any]) -> Any:
    """The signature of a unary call that is answered with a view."""
    return purerpc.RPCSignature(purerpc.Cardinality.UNARY_UNARY, request_type, View)
