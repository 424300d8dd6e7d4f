from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import purerpc

import kakeya.wire.pb.kakeya.node.v1.drafters_pb2 as pb

Metadata = Sequence[tuple[str, str | bytes]]

class DrafterServiceServicer(purerpc.Servicer):
    async def ListDrafters(self, input_message: pb.ListDraftersRequest) -> pb.ListDraftersResponse: ...
    @property
    def service(self) -> purerpc.Service: ...

class DrafterServiceStub:
    def __init__(self, channel: Any) -> None: ...
    async def ListDrafters(self, message: pb.ListDraftersRequest, *, metadata: Metadata | None = None) -> pb.ListDraftersResponse: ...
