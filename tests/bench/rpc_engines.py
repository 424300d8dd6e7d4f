"""The four ways to make a call that the benchmark compares, each behind the same two functions.

An engine is a module-level object with `serve(stop)` and `client(port)`; `run` starts its loop.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import grpc
import purerpc
import trio
from google.protobuf.wrappers_pb2 import BytesValue

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.channel import Channels, TcpDialer
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import open_server
from kakeya.rpc.security import client_tls, server_tls
from tests.interop.certificates import Identity

SERVICE = "bench.Echo"
LIMITS = RpcLimits()
Call = Callable[[BytesValue], Awaitable[Any]]
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
SIGNATURE = purerpc.RPCSignature(purerpc.Cardinality.UNARY_UNARY, BytesValue, BytesValue)


def answered(request: BytesValue) -> BytesValue:
    """As many bytes as the request says, or none when it carries bytes itself."""
    text = request.value
    return BytesValue(value=bytes(int(text[1:])) if text[:1] == b"=" else b"")


async def echo(request: BytesValue) -> BytesValue:
    return answered(request)


def service() -> purerpc.Service:
    made = purerpc.Service(SERVICE)
    made.add_method("Echo", echo, SIGNATURE)
    return made


class Aio:
    """grpcio's grpc.aio."""

    name = "aio"
    max_bytes = 1 << 40
    # Both sides show this certificate when there is one.
    identity: Identity | None = None

    def run(self, main: Callable[..., Any], *args: Any) -> Any:
        return asyncio.run(main(*args))

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        async def handle(request, context):
            return answered(request)

        server = grpc.aio.server(options=OPTIONS)
        handler = grpc.unary_unary_rpc_method_handler(
            handle,
            request_deserializer=BytesValue.FromString,
            response_serializer=BytesValue.SerializeToString,
        )
        generic = grpc.method_handlers_generic_handler(SERVICE, {"Echo": handler})
        server.add_generic_rpc_handlers((generic,))
        if self.identity is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            key, cert, ca = self.identity.read()
            secret = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
            port = server.add_secure_port("127.0.0.1:0", secret)
        await server.start()
        yield port
        await server.stop(0)

    @asynccontextmanager
    async def client(self, port: int) -> AsyncIterator[Call]:
        async with self._channel(f"localhost:{port}") as channel:
            yield channel.unary_unary(
                f"/{SERVICE}/Echo",
                request_serializer=BytesValue.SerializeToString,
                response_deserializer=BytesValue.FromString,
            )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self.identity is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        key, cert, ca = self.identity.read()
        secret = grpc.ssl_channel_credentials(ca, key, cert)
        return grpc.aio.secure_channel(address, secret, options=OPTIONS)

    async def together(self, call: Call, request: BytesValue, count: int, flights: int) -> None:
        async def one() -> None:
            for _ in range(count // flights):
                await call(request)

        await asyncio.gather(*(one() for _ in range(flights)))

    async def forever(self) -> None:
        await asyncio.Event().wait()


class OnTrio:
    """What the three engines on Trio share: how to run, and many calls at once."""

    max_bytes = 1 << 40

    def run(self, main: Callable[..., Any], *args: Any) -> Any:
        return trio.run(main, *args)

    async def together(self, call: Call, request: BytesValue, count: int, flights: int) -> None:
        async def one() -> None:
            for _ in range(count // flights):
                await call(request)

        async with trio.open_nursery() as nursery:
            for _ in range(flights):
                nursery.start_soon(one)

    async def forever(self) -> None:
        await trio.sleep_forever()


class Ours(OnTrio):
    """kakeya.rpc."""

    name = "ours"
    identity: Identity | None = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        tls = None if self.identity is None else server_tls(**asdict(self.identity))
        server = await open_server("127.0.0.1", 0, limits=LIMITS, tls=tls)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, Endpoint([service()], limits=LIMITS))
            yield server.port
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def client(self, port: int) -> AsyncIterator[Call]:
        rng = random.Random(1)
        tls = None if self.identity is None else client_tls(**asdict(self.identity))
        channels = Channels(dialer=TcpDialer(LIMITS, tls), limits=LIMITS, rng=rng)
        async with trio.open_nursery() as nursery:
            await nursery.start(channels.serve)
            stub = channels.to(f"127.0.0.1:{port}").client(SERVICE)
            yield stub.get_method_stub("Echo", SIGNATURE)
            nursery.cancel_scope.cancel()


class Stock(OnTrio):
    """purerpc with its own engine."""

    name = "stock"
    # Its message limit is 32 MiB and its sender is quadratic.
    max_bytes = 12 << 20

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = purerpc.Server(port)
        server.add_service(service())
        async with trio.open_nursery() as nursery:
            await nursery.start(_reporting(server))
            yield port
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def client(self, port: int) -> AsyncIterator[Call]:
        async with purerpc.insecure_channel("127.0.0.1", port) as channel:
            yield purerpc.Client(SERVICE, channel).get_method_stub("Echo", SIGNATURE)


def _reporting(server: purerpc.Server) -> Any:
    async def serve(task_status=trio.TASK_STATUS_IGNORED):
        await server.serve_async(task_status=task_status)

    return serve


class Raw(OnTrio):
    """A length and bytes on a Trio socket: what no engine can beat."""

    name = "raw"

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[int]:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def handle(stream: trio.SocketStream) -> None:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with_rest = b""
            while True:
                payload, with_rest = await _receive(stream, with_rest)
                if payload is None:
                    return
                await _send(stream, answered(BytesValue.FromString(payload)))

        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, handle, listeners)
            yield listeners[0].socket.getsockname()[1]
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def client(self, port: int) -> AsyncIterator[Call]:
        free: list[trio.SocketStream] = []
        made: list[trio.SocketStream] = []

        async def call(request: BytesValue) -> BytesValue:
            if free:
                stream = free.pop()
            else:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                made.append(stream)
            await _send(stream, request)
            payload, _ = await _receive(stream, b"")
            free.append(stream)
            return BytesValue.FromString(bytes(payload or b""))

        yield call
        for stream in made:
            await stream.aclose()


async def _send(stream: trio.SocketStream, message: BytesValue) -> None:
    payload = message.SerializeToString()
    await stream.send_all(struct.pack(">Q", len(payload)) + payload)


async def _receive(stream: trio.SocketStream, rest: bytes) -> tuple[bytes | None, bytes]:
    got = bytearray(rest)
    while len(got) < 8:
        piece = await stream.receive_some(1 << 20)
        if not piece:
            return None, b""
        got += piece
    size = 8 + struct.unpack_from(">Q", got)[0]
    while len(got) < size:
        got += await stream.receive_some(1 << 20)
    return bytes(got[8:size]), bytes(got[size:])


ENGINES = {engine.name: engine for engine in (Aio(), Ours(), Stock(), Raw())}
