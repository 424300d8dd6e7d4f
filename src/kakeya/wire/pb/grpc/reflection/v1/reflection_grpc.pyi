from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import purerpc

import kakeya.wire.pb.grpc.reflection.v1.reflection_pb2 as pb

Metadata = Sequence[tuple[str, str | bytes]]

class ServerReflectionServicer(purerpc.Servicer):
    def ServerReflectionInfo(self, input_message: AsyncIterator[pb.ServerReflectionRequest]) -> AsyncIterator[pb.ServerReflectionResponse]: ...
    @property
    def service(self) -> purerpc.Service: ...

class ServerReflectionStub:
    def __init__(self, channel: Any) -> None: ...
    def ServerReflectionInfo(self, message: AsyncIterator[pb.ServerReflectionRequest], *, metadata: Metadata | None = None) -> AsyncGenerator[pb.ServerReflectionResponse, None]: ...
