"""grpcio's client on our server, and our channel on grpcio's server."""

from __future__ import annotations

import random
from contextlib import aclosing, asynccontextmanager

import grpc
import pytest
import trio

from kakeya.errors import Refused
from kakeya.rpc.channel import Channels
from kakeya.rpc.dialing import TcpDialer
from kakeya.rpc.listener import open_server
from kakeya.rpc.security import guarded_by, key_metadata
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from tests.interop.grpcio_peer import (
    LIMITS,
    OPTIONS,
    generate,
    get_fleet,
    grpcio_server,
    in_thread,
    serving,
)
from tests.rpc.peers import Node, ask

BIG = 64 << 20


@asynccontextmanager
async def their_client(node, *, admit=None):
    async with serving([node.service], admit=admit) as server:
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            yield server, channel


@asynccontextmanager
async def our_client(port: int, *, metadata=(), tls=None, host="127.0.0.1"):
    async with trio.open_nursery() as nursery:
        channels = Channels(
            dialer=TcpDialer(LIMITS, tls), limits=LIMITS, rng=random.Random(3), metadata=metadata
        )
        await nursery.start(channels.serve)
        stub = NodeServiceStub(channels.to(f"{host}:{port}"))
        stub.channel = channels.to(f"{host}:{port}")
        yield stub
        nursery.cancel_scope.cancel()


async def until(holds, within_s=2.0):
    with trio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - the other side is a thread
            await trio.sleep(0.005)


async def test_their_client_calls_us_one_hundred_at_once():
    async with their_client(Node()) as (_, channel):

        def many():
            calls = [get_fleet(channel).future(ask(f"n{i}")) for i in range(100)]
            return [call.result(timeout=10).fleet_name for call in calls]

        assert await in_thread(many) == [f"n{i}" for i in range(100)]


async def test_their_client_reads_our_status_and_unicode_details():
    async with their_client(Node()) as (_, channel):

        def refused():
            with pytest.raises(grpc.RpcError) as caught:
                get_fleet(channel)(ask("refuse FAILED_PRECONDITION 100 % ď 한 👪"))
            return caught.value.code(), caught.value.details()

        assert await in_thread(refused) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "100 % ď 한 👪",
        )


async def test_their_deadline_is_answered_in_time_and_stops_our_handler():
    node = Node()
    async with their_client(node) as (_, channel):

        def late():
            with pytest.raises(grpc.RpcError) as caught:
                get_fleet(channel)(ask("wait 30"), timeout=0.1)
            return caught.value.code()

        assert await in_thread(late) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: node.cancelled == 1)


async def test_their_cancellation_stops_our_handler():
    node = Node()
    async with their_client(node) as (server, channel):
        call = get_fleet(channel).future(ask("wait 30"))
        await until(lambda: node.running == 1)
        call.cancel()
        await until(lambda: node.cancelled == 1)
        await until(lambda: server.endpoint.num_calls == 0)


async def test_sixty_four_megabytes_come_and_go_with_their_client():
    async with their_client(Node()) as (server, channel):
        text = "x" * BIG
        answer = await in_thread(get_fleet(channel), ask(text))
        assert answer.fleet_name == text
        await until(lambda: server.endpoint.held_bytes == 0)


async def test_their_metadata_reaches_our_handler_binary_too():
    node = Node()
    sent = (("x-text", "plain"), ("x-raw-bin", b"\x00\xff\x01"), ("x-raw-bin", b""))
    async with their_client(node) as (_, channel):
        await in_thread(lambda: get_fleet(channel)(ask(), metadata=sent))
    got = [pair for pair in node.calls[0].metadata if pair[0].startswith("x-")]
    assert got == list(sent)


async def test_their_client_reads_our_stream():
    async with their_client(Node()) as (_, channel):
        request = node_pb2.GenerateRequest(max_tokens=50)
        events = await in_thread(lambda: list(generate(channel)(request)))
        assert [event.ids[0] for event in events] == list(range(50))


async def test_their_client_without_the_key_is_unauthenticated():
    key = "k" * 32
    async with their_client(Node(), admit=guarded_by(key)) as (_, channel):

        def call(metadata):
            try:
                return get_fleet(channel)(ask(), metadata=metadata).fleet_name
            except grpc.RpcError as error:
                return error.code()

        assert await in_thread(call, ()) is grpc.StatusCode.UNAUTHENTICATED
        wrong = key_metadata("w" * 32)
        assert await in_thread(call, wrong) is grpc.StatusCode.UNAUTHENTICATED
        assert await in_thread(call, key_metadata(key)) == "hello"


async def test_our_client_calls_theirs_one_hundred_at_once():
    with grpcio_server() as (port, _):
        answers = []
        async with our_client(port) as stub:

            async def one(i):
                answers.append((await stub.GetFleet(ask(f"n{i}"))).fleet_name)

            async with trio.open_nursery() as nursery:
                for i in range(100):
                    nursery.start_soon(one, i)
        assert sorted(answers) == sorted(f"n{i}" for i in range(100))


async def test_our_client_reads_their_status_and_unicode_details():
    with grpcio_server() as (port, _):
        async with our_client(port) as stub:
            with pytest.raises(RpcFailedError) as caught:
                await stub.GetFleet(ask("refuse 100 % ď 한 👪"))
        told = status_name(caught.value), status_text(caught.value)
        assert told == ("NOT_FOUND", "100 % ď 한 👪")


async def test_our_deadline_and_our_cancellation_reach_their_handler():
    with grpcio_server() as (port, counts):
        async with our_client(port) as stub:
            with trio.move_on_after(0.15) as scope:
                await stub.GetFleet(ask("wait 30"))
            assert scope.cancelled_caught
            assert 0 < counts.remaining_s[0] <= 0.16
            await until(lambda: counts.cancelled == 1)


async def test_sixty_four_megabytes_come_and_go_with_their_server():
    with grpcio_server() as (port, _):
        async with our_client(port) as stub:
            text = "x" * BIG
            assert (await stub.GetFleet(ask(text))).fleet_name == text


async def test_our_metadata_reaches_their_handler_binary_too():
    sent = [("x-text", "plain"), ("x-raw-bin", b"\x00\xff\x01")]
    with grpcio_server() as (port, counts):
        async with our_client(port, metadata=[("x-fleet", "home")]) as stub:
            await stub.GetFleet(ask(), metadata=sent)
    got = [tuple(pair) for pair in counts.metadata[0] if pair[0].startswith("x-")]
    assert sorted(got) == sorted([*sent, ("x-fleet", "home")])


async def test_our_client_reads_their_stream_and_leaves_it_early():
    with grpcio_server() as (port, _):
        async with our_client(port) as stub:
            request = node_pb2.GenerateRequest(max_tokens=20)
            ids = [event.ids[0] async for event in stub.Generate(request)]
            assert ids == list(range(20))
            slow = node_pb2.GenerateRequest(max_tokens=1000, temperature=0.01)
            async with aclosing(stub.Generate(slow)) as events:
                async for _ in events:
                    break
            assert (await stub.GetFleet(ask())).fleet_name == "hello"


async def test_a_server_that_stops_makes_calls_unavailable_at_once():
    with grpcio_server() as (port, _):
        async with our_client(port) as stub:
            await stub.GetFleet(ask())
            async with trio.open_nursery() as nursery:
                failures = []

                async def hang():
                    try:
                        await stub.GetFleet(ask("wait 1"))
                    except RpcFailedError as error:
                        failures.append(status_name(error))

                nursery.start_soon(hang)
                await trio.sleep(0.05)
            assert failures in ([], ["UNAVAILABLE"], ["CANCELLED"])


@pytest.mark.spec("R-14")
async def test_a_taken_port_is_refused_by_name():
    first = await open_server("127.0.0.1", 0, limits=LIMITS)
    async with serving([Node().service]) as server:
        for port in (first.port, server.port):
            with pytest.raises(Refused, match=str(port)):
                await open_server("127.0.0.1", port, limits=LIMITS)
    await first.close()


async def test_names_and_ipv6_are_served_and_dialled():
    node = Node()
    from kakeya.rpc.endpoint import Endpoint

    server = await open_server("localhost", 0, limits=LIMITS)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, Endpoint([node.service], limits=LIMITS))
        for host in ("localhost", "127.0.0.1"):
            async with our_client(server.port, host=host) as stub:
                assert (await stub.GetFleet(ask())).fleet_name == "hello"
        nursery.cancel_scope.cancel()
