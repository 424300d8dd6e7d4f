"""grpc.reflection v1 and v1alpha: what is served here, for tools such as grpcurl."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import purerpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor

from kakeya.errors import STATUS_NAMES
from kakeya.wire.pb.grpc.reflection.v1 import reflection_grpc as v1_grpc
from kakeya.wire.pb.grpc.reflection.v1 import reflection_pb2 as v1
from kakeya.wire.pb.grpc.reflection.v1alpha import reflection_grpc as v1alpha_grpc
from kakeya.wire.pb.grpc.reflection.v1alpha import reflection_pb2 as v1alpha

NOT_FOUND = STATUS_NAMES.index("NOT_FOUND")
UNIMPLEMENTED = STATUS_NAMES.index("UNIMPLEMENTED")


def answer(request: Any, pb: Any, services: Sequence[str]) -> Any:
    """The answer to one question; `pb` is the module of the version it came in."""
    response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in services:
            response.list_services_response.service.add(name=name)
        return response
    if kind not in ("file_by_filename", "file_containing_symbol"):
        # proto3 has no extensions.
        response.error_response.error_code = UNIMPLEMENTED
        response.error_response.error_message = "only services, files and symbols are known"
        return response
    file = find_file(kind, getattr(request, kind))
    if file is None:
        response.error_response.error_code = NOT_FOUND
        response.error_response.error_message = "no such file or symbol here"
        return response
    response.file_descriptor_response.file_descriptor_proto.extend(
        each.serialized_pb for each in with_dependencies(file)
    )
    return response


def find_file(kind: str, name: str) -> FileDescriptor | None:
    """The .proto file of that name, or the one that defines that symbol."""
    pool = descriptor_pool.Default()
    try:
        if kind == "file_by_filename":
            return pool.FindFileByName(name)
        return pool.FindFileContainingSymbol(name)
    except KeyError:
        return None


def with_dependencies(file: FileDescriptor) -> list[FileDescriptor]:
    """The file and all that it imports, each once, itself first."""
    found = {file.name: file}
    for imported in file.dependencies:
        found |= {each.name: each for each in with_dependencies(imported)}
    return list(found.values())


def reflection_services(services: Sequence[str]) -> list[purerpc.Service]:
    """Both versions of the service, telling of `services` and of themselves."""
    own = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]
    names = sorted({*services, *own})
    return [ReflectionV1(names).service, ReflectionV1Alpha(names).service]


class ReflectionV1(v1_grpc.ServerReflectionServicer):
    """grpc.reflection.v1."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services

    async def ServerReflectionInfo(  # noqa: N802
        self, input_message: AsyncIterator[v1.ServerReflectionRequest]
    ) -> AsyncIterator[v1.ServerReflectionResponse]:
        async for request in input_message:
            yield answer(request, v1, self._services)


class ReflectionV1Alpha(v1alpha_grpc.ServerReflectionServicer):
    """grpc.reflection.v1alpha: the same, under its old name."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services

    async def ServerReflectionInfo(  # noqa: N802
        self, input_message: AsyncIterator[v1alpha.ServerReflectionRequest]
    ) -> AsyncIterator[v1alpha.ServerReflectionResponse]:
        async for request in input_message:
            yield answer(request, v1alpha, self._services)
