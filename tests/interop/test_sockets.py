"""Real sockets: resets, many connections, and what is left of them."""

from __future__ import annotations

import os
import socket
import struct

import pytest
import trio

from kakeya.rpc.status import RpcFailedError, status_name
from tests.interop.grpcio_peer import serving
from tests.interop.test_grpcio import our_client, until
from tests.rpc.peers import Node, ask
from tests.rpc.raw import GREETING, call, message

WAIT = message(ask("wait 30").SerializeToString())


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


async def test_tcp_resets_cancel_handlers_and_leave_no_descriptor():
    node = Node()
    async with serving([node.service]) as server:
        before = open_files()
        streams = []
        for _ in range(30):
            stream = await trio.open_tcp_stream("127.0.0.1", server.port)
            await stream.send_all(GREETING + call(1, WAIT))
            streams.append(stream)
        await until(lambda: node.running == 30)
        for stream in streams:
            # A linger of 0 s makes close() send RST.
            linger = struct.pack("ii", 1, 0)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            stream.socket.close()
        await until(lambda: node.cancelled == 30 and server.endpoint.num_connections == 0)
        await until(lambda: open_files() == before)


async def test_a_server_whose_socket_is_reset_makes_the_call_unavailable_at_once():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def reset(stream: trio.SocketStream) -> None:
        await stream.receive_some(100)
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, reset, listeners)
        async with our_client(listeners[0].socket.getsockname()[1]) as stub:
            with trio.fail_after(1), pytest.raises(RpcFailedError) as caught:
                await stub.GetFleet(ask())
            assert status_name(caught.value) == "UNAVAILABLE"
        nursery.cancel_scope.cancel()


async def test_nobody_listening_is_unavailable_with_the_reason():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with our_client(port) as stub:
        with trio.fail_after(2), pytest.raises(RpcFailedError, match="refused") as caught:
            await stub.GetFleet(ask())
        assert status_name(caught.value) == "UNAVAILABLE"


@pytest.mark.spec("R-15")
async def test_a_drained_server_finishes_what_runs_and_frees_its_port():
    node = Node()
    async with (
        serving([node.service]) as server,
        our_client(server.port) as stub,
        trio.open_nursery() as nursery,
    ):
        answers = []

        async def late():
            answers.append((await stub.GetFleet(ask("wait 0.2"))).fleet_name)

        nursery.start_soon(late)
        await until(lambda: node.running == 1)
        with trio.fail_after(3):
            await server.drain()
        await until(lambda: answers == ["wait 0.2"])
        with pytest.raises(RpcFailedError, match="refused"):
            await stub.GetFleet(ask())
