"""grpcio on the other side, in threads of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager

import grpc
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import Server, open_server
from kakeya.wire.pb.kakeya.node.v1 import node_pb2

SERVICE = "kakeya.node.v1.NodeService"
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
LIMITS = RpcLimits()


@asynccontextmanager
async def serving(services, *, admit=None, tls=None, limits=LIMITS) -> AsyncIterator[Server]:
    """Our server on a free port of 127.0.0.1."""
    endpoint = Endpoint(services, limits=limits, admit=admit)
    server = await open_server("127.0.0.1", 0, limits=limits, tls=tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, endpoint)
        server.endpoint = endpoint  # for tests to look at
        yield server
        nursery.cancel_scope.cancel()


def get_fleet(channel: grpc.Channel):
    return channel.unary_unary(
        f"/{SERVICE}/GetFleet",
        request_serializer=node_pb2.GetFleetRequest.SerializeToString,
        response_deserializer=node_pb2.GetFleetResponse.FromString,
    )


def generate(channel: grpc.Channel):
    return channel.unary_stream(
        f"/{SERVICE}/Generate",
        request_serializer=node_pb2.GenerateRequest.SerializeToString,
        response_deserializer=node_pb2.GenerateEvent.FromString,
    )


async def in_thread(fn, *args):
    return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=True)


class Counts:
    """What happened in a grpcio handler."""

    def __init__(self) -> None:
        self.metadata: list = []
        self.remaining_s: list = []
        self.cancelled = 0


@contextmanager
def grpcio_server(
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[tuple[int, Counts]]:
    """A grpcio server with NodeService's methods; yields its port."""
    counts = Counts()

    def fleet(request, context):
        counts.metadata.append(context.invocation_metadata())
        counts.remaining_s.append(context.time_remaining())
        verb, _, rest = request.model_id.partition(" ")
        if verb == "refuse":
            context.abort(grpc.StatusCode.NOT_FOUND, rest)
        if verb == "wait":
            context.add_callback(lambda: setattr(counts, "cancelled", counts.cancelled + 1))
            until = time.monotonic() + float(rest)
            while context.is_active() and time.monotonic() < until:
                time.sleep(0.005)
        return node_pb2.GetFleetResponse(fleet_name=request.model_id)

    def events(request, context):
        for number in range(request.max_tokens):
            yield node_pb2.GenerateEvent(ids=[number])
            time.sleep(request.temperature)

    handlers = {
        "GetFleet": grpc.unary_unary_rpc_method_handler(
            fleet,
            request_deserializer=node_pb2.GetFleetRequest.FromString,
            response_serializer=node_pb2.GetFleetResponse.SerializeToString,
        ),
        "Generate": grpc.unary_stream_rpc_method_handler(
            events,
            request_deserializer=node_pb2.GenerateRequest.FromString,
            response_serializer=node_pb2.GenerateEvent.SerializeToString,
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield port, counts
    finally:
        server.stop(0).wait()
