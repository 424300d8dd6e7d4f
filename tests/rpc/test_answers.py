"""Whatever a server does, a call ends with a status and the next one is not harmed."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from kakeya.rpc import frames
from kakeya.rpc.channel import Channels
from kakeya.rpc.headers import RESPONSE_HEAD, TRAILERS_OK, http_answer, literal, status_trailers
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from kakeya.wire.pb.kakeya.node.v1.node_pb2 import GetFleetResponse
from tests.rpc.peers import LIMITS, ask
from tests.rpc.raw import data, frame, headers, message

EH, ES = frames.END_HEADERS, frames.END_STREAM
GREETING = frames.settings({}) + frames.SETTINGS_ACK
REPLY = message(GetFleetResponse(fleet_name="hello").SerializeToString())
HEAD = headers(1, RESPONSE_HEAD)
END = headers(1, TRAILERS_OK, EH | ES)
WELL = GREETING + HEAD + data(1, REPLY, 0) + END
CANCEL, REFUSED = (8).to_bytes(4, "big"), (7).to_bytes(4, "big")
HANGS = None


class Server:
    """Accepts every dial, reads all, and says `says`; then closes unless it `stays`."""

    def __init__(self, says: bytes, *, stays: bool) -> None:
        self.says = says
        self.stays = stays
        self.num_dials = 0
        self.heard: list[bytearray] = []
        self.nursery: trio.Nursery | None = None

    async def open(self, address: str) -> trio.abc.Stream:
        self.num_dials += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self.heard.append(bytearray())
        assert self.nursery is not None
        self.nursery.start_soon(self._serve, theirs, self.heard[-1])
        return ours

    async def _serve(self, stream, heard) -> None:
        says = self.says
        try:
            heard += await stream.receive_some(65536)
            # The call itself has arrived when the stub's frames follow the greeting.
            while b"application/grpc" not in heard:
                heard += await stream.receive_some(65536)
            await stream.send_all(says)
            if not self.stays:
                await stream.aclose()
                return
            while piece := await stream.receive_some(65536):
                heard += piece
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


@asynccontextmanager
async def calling(says: bytes, *, stays: bool = True, limits=LIMITS):
    server = Server(says, stays=stays)
    async with trio.open_nursery() as nursery:
        server.nursery = nursery
        channels = Channels(dialer=server, limits=limits, rng=random.Random(5))
        await nursery.start(channels.serve)
        yield NodeServiceStub(channels.to("there:1")), server, channels
        nursery.cancel_scope.cancel()


async def ending(stub) -> str:
    try:
        return (await stub.GetFleet(ask())).fleet_name
    except RpcFailedError as error:
        return status_name(error)


CASES = [
    ("a good answer", WELL, True, "hello"),
    ("nothing and EOF", b"", False, "UNAVAILABLE"),
    ("a greeting and EOF", GREETING, False, "UNAVAILABLE"),
    ("half an answer and EOF", GREETING + HEAD + data(1, REPLY[:4], 0), False, "UNAVAILABLE"),
    ("a server of HTTP/1.1", b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "UNAVAILABLE"),
    ("a server of something else", b"220 mail ready\r\n", True, "UNAVAILABLE"),
    ("RST_STREAM CANCEL", GREETING + frame(3, 0, 1, CANCEL), True, "CANCELLED"),
    ("RST_STREAM REFUSED_STREAM", GREETING + frame(3, 0, 1, REFUSED), True, "UNAVAILABLE"),
    ("RST_STREAM after the trailers", WELL + frame(3, 0, 1, bytes(4)), True, "hello"),
    ("GOAWAY before the call", GREETING + frames.goaway(0, 0), True, "UNAVAILABLE"),
    ("GOAWAY that lets the call end", GREETING + frames.goaway(1, 0) + WELL[len(GREETING) :],
     True, "hello"),
    ("trailers only", GREETING + headers(1, RESPONSE_HEAD + status_trailers(5, "no"), EH | ES),
     True, "NOT_FOUND"),
    ("trailers only with an unknown status",
     GREETING + headers(1, RESPONSE_HEAD + literal("grpc-status", "99"), EH | ES), True, "UNKNOWN"),
    ("a status that is no number",
     GREETING + headers(1, RESPONSE_HEAD + literal("grpc-status", "no"), EH | ES), True, "UNKNOWN"),
    ("HTTP 503", GREETING + headers(1, http_answer(503), EH | ES), True, "UNAVAILABLE"),
    ("HTTP 404 with a page", GREETING + headers(1, http_answer(404)) + data(1, b"<html>"), True,
     "UNIMPLEMENTED"),
    ("an informational answer first",
     GREETING + headers(1, http_answer(103)) + WELL[len(GREETING) :], True, "hello"),
    ("an answer without a status", GREETING + HEAD + data(1, REPLY, ES), True, "INTERNAL"),
    ("an answer without a message", GREETING + HEAD + END, True, "INTERNAL"),
    ("two messages", GREETING + HEAD + data(1, REPLY + REPLY, 0) + END, True, "INTERNAL"),
    ("a message cut short", GREETING + HEAD + data(1, REPLY[:-1], 0) + END, True, "INTERNAL"),
    ("a compressed message", GREETING + HEAD + data(1, message(b"z", 1), 0) + END, True,
     "UNIMPLEMENTED"),
    ("an oversize message", GREETING + HEAD + data(1, b"\0\xff\xff\xff\xff", 0), True,
     "RESOURCE_EXHAUSTED"),
    ("a message that does not parse", GREETING + HEAD + data(1, message(b"\xff\xff"), 0) + END,
     True, "INTERNAL"),
    ("DATA before HEADERS", GREETING + data(1, REPLY, 0), True, "INTERNAL"),
    ("HEADERS that do not decode", GREETING + headers(1, b"\xff\xff\xff\xff\xff"), True,
     "UNAVAILABLE"),
    ("a stream nobody opened", GREETING + headers(7, RESPONSE_HEAD), True, "UNAVAILABLE"),
    ("a pushed stream", GREETING + frame(5, EH, 1, bytes(4)), True, "UNAVAILABLE"),
]  # fmt: skip


@pytest.mark.spec("R-04")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_a_call_ends_at_once_whatever_the_server_does(case, autojump_clock):
    _, says, stays, wanted = case
    async with calling(says, stays=stays) as (stub, server, channels):
        begun = trio.current_time()
        assert await ending(stub) == wanted
        assert trio.current_time() - begun < 0.1
        assert channels.budget.held_bytes == 0
        # After what came of it a good server is found good again.
        server.says = WELL
        await trio.sleep(LIMITS.max_backoff_s)
        if server.num_dials == 1 and wanted != "UNAVAILABLE":
            return
        if server.num_dials == 1:
            assert await ending(stub) in ("hello", "UNAVAILABLE", "INTERNAL")
            return
        assert await ending(stub) == "hello"


@pytest.mark.spec("R-10")
async def test_a_server_that_never_speaks_is_unavailable_after_the_handshake_limit(autojump_clock):
    async with calling(b"") as (stub, _, _):
        begun = trio.current_time()
        assert await ending(stub) == "UNAVAILABLE"
        assert trio.current_time() - begun <= LIMITS.handshake_s + 2 * LIMITS.check_s


@pytest.mark.spec("R-06")
async def test_a_caller_that_leaves_sends_rst_stream_cancel(autojump_clock):
    async with calling(GREETING) as (stub, server, _):
        with trio.move_on_after(1):
            await stub.GetFleet(ask())
        await trio.sleep(0.1)
        assert frames.reset(1, frames.CANCEL) in server.heard[0]


@pytest.mark.spec("R-05")
async def test_the_scopes_deadline_is_in_the_request_and_never_indexed(autojump_clock):
    async with calling(WELL) as (stub, server, _):
        with trio.fail_after(2.5):
            await stub.GetFleet(ask(), metadata=[("authorization", "Bearer secret")])
        assert literal("grpc-timeout", "2500m") in server.heard[0]
        assert literal("authorization", "Bearer secret") in server.heard[0]


@pytest.mark.spec("R-09")
async def test_calls_wait_while_the_peer_allows_no_stream(autojump_clock):
    none = frames.settings({frames.MAX_CONCURRENT_STREAMS: 0}) + frames.SETTINGS_ACK
    async with calling(none + WELL[len(GREETING) :]) as (stub, _, _):
        assert await ending(stub) == "hello"
        with trio.move_on_after(5) as scope:
            await stub.GetFleet(ask())
        assert scope.cancelled_caught


async def test_a_queue_of_waiting_calls_has_a_size(autojump_clock):
    none = frames.settings({frames.MAX_CONCURRENT_STREAMS: 0}) + frames.SETTINGS_ACK
    limits = replace(LIMITS, max_waiting_calls=3)
    async with calling(none + WELL[len(GREETING) :], limits=limits) as (stub, _, _):
        assert await ending(stub) == "hello"
        endings = []

        async def one():
            with trio.move_on_after(5):
                endings.append(await ending(stub))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert endings == ["RESOURCE_EXHAUSTED"] * 2
