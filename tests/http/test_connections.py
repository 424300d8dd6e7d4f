"""Bytes on a connection: what is taken, what is refused and when, and how it ends."""

from __future__ import annotations

import h11
import pytest
import trio
import trio.testing

from kakeya.config.http import HttpLimits
from tests.http.world import chat_body, world

SMALL = HttpLimits(
    max_header_bytes=1000,
    max_body_bytes=2000,
    header_s=2.0,
    body_s=2.0,
    min_body_bytes_per_s=100,
    idle_s=20.0,
    stall_s=5.0,
    max_connections=3,
)
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def over(client) -> bool:
    """Whether the connection ends without another byte."""
    return await client.stream.receive_some(1) == b""


async def test_requests_follow_one_another_on_one_connection(autojump_clock):
    async with world() as there:
        client = there.client()
        for _ in range(20):
            assert (await client.ask("GET", "/health")).json == {"status": "ok"}
        assert (await client.chat()).status == 200
        assert (await client.ask("GET", "/v1/models")).json["data"][0]["id"] == "toy"


async def test_requests_sent_at_once_are_answered_in_order(autojump_clock):
    async with world() as there:
        client = there.client()
        await client.stream.send_all(HEALTH + HEALTH.replace(b"health", b"ready") + HEALTH)
        raw = b""
        while raw.count(b"HTTP/1.1") < 3:
            raw += await client.stream.receive_some(65536)
        await trio.testing.wait_all_tasks_blocked()
        assert [b"ready" in each for each in raw.split(b"HTTP/1.1")[1:]] == [False, True, False]


async def test_a_request_that_comes_byte_by_byte_is_a_request(autojump_clock):
    async with world() as there:
        client = there.client()
        for byte in HEALTH:
            await client.stream.send_all(bytes([byte]))
            await trio.sleep(0.1)
        client._h11.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
        client._h11.send(h11.EndOfMessage())
        assert (await client.answer()).status == 200


@pytest.mark.spec("H-01")
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1500 + b"\r\n\r\n", 431),
        (b"G" * 1500, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n"
            b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2001\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            b"7d1\r\n" + b"x" * 2001 + b"\r\n",
            413,
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
    ],
)
async def test_what_is_too_large_or_no_http_is_answered_once(raw, status, autojump_clock):
    async with world(limits=SMALL) as there:
        client = there.client()
        await client.stream.send_all(raw)
        answer = await all_of(client)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"connection: close" in answer.lower()
        assert b'{"error":{"message":' in answer
        assert (await there.client().ask("GET", "/health")).status == 200


async def all_of(client) -> bytes:
    raw = b""
    while data := await client.stream.receive_some(65536):
        raw += data
    return raw


@pytest.mark.spec("H-01")
async def test_a_head_that_comes_too_slowly(autojump_clock):
    async with world(limits=SMALL) as there:
        client = there.client()
        started_s = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                for byte in HEALTH:
                    await client.stream.send_all(bytes([byte]))
                    await trio.sleep(0.5)

            nursery.start_soon(drip)
            assert b" 408 " in await all_of(client)
            nursery.cancel_scope.cancel()
        assert trio.current_time() - started_s < SMALL.header_s + 2


@pytest.mark.spec("H-01")
async def test_a_body_that_comes_too_slowly(autojump_clock):
    async with world(limits=SMALL) as there:
        client = there.client()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n"
        await client.stream.send_all(head + b"{")
        assert b" 408 " in await all_of(client)
        assert trio.current_time() < SMALL.body_s + 2
        # One that keeps the rate is waited for.
        steady = there.client()
        await steady.stream.send_all(head)
        for _ in range(9):
            await trio.sleep(0.9)
            await steady.stream.send_all(b"x" * 100)
        raw = await steady.stream.receive_some(65536)
        assert raw.startswith(b"HTTP/1.1 400")
        assert b"not JSON" in raw


@pytest.mark.spec("H-01")
async def test_an_idle_connection_ends_quietly(autojump_clock):
    async with world(limits=SMALL) as there:
        client = there.client()
        assert await over(client)
        assert trio.current_time() == pytest.approx(SMALL.idle_s)
        again = there.client()
        await again.ask("GET", "/health")
        assert await over(again)


@pytest.mark.spec("H-01")
async def test_one_connection_too_many_is_closed(autojump_clock):
    async with world(limits=SMALL) as there:
        clients = [there.client() for _ in range(3)]
        for client in clients:
            await client.ask("GET", "/health")
        assert await over(there.client())
        await clients[0].leave()
        await trio.sleep(0.01)
        assert (await there.client().ask("GET", "/health")).status == 200


@pytest.mark.spec("H-01")
async def test_a_client_that_takes_nothing_is_given_up(autojump_clock):
    async with world(limits=SMALL) as there:
        ours, theirs = trio.testing.lockstep_stream_pair()  # nothing is sent that is not taken
        there.nursery.start_soon(there.connections.serve, theirs, "here")
        client = type(there.client())(ours)
        await client.send("POST", "/v1/chat/completions", chat_body(stream=True, max_tokens=2000))
        await trio.sleep(SMALL.stall_s + 2)
        assert there.admission.num_running == 0


async def test_a_body_in_chunks_and_one_that_waits_for_100_continue(autojump_clock):
    async with world() as there:
        client = there.client()
        body = b'{"prompt":"abc","temperature":0,"max_tokens":3}'
        request = h11.Request(
            method="POST", target="/v1/completions",
            headers=[("host", "localhost"), ("transfer-encoding", "chunked"),
                     ("expect", "100-continue")],
        )  # fmt: skip
        await client.stream.send_all(client._h11.send(request))
        assert (await client.event()).status_code == 100
        for part in (body[:10], body[10:]):
            await client.stream.send_all(client._h11.send(h11.Data(data=part)))
        await client.stream.send_all(client._h11.send(h11.EndOfMessage()))
        assert (await client.answer()).json["usage"]["completion_tokens"] == 3


async def test_head_is_get_without_a_body(autojump_clock):
    async with world() as there:
        client = there.client()
        full, head = await client.ask("GET", "/v1/models"), await client.ask("HEAD", "/v1/models")
        assert (head.status, head.body) == (200, b"")
        assert head.fields["content-length"] == str(len(full.body))
        assert (await client.ask("GET", "/health")).status == 200


async def test_http_1_0_is_answered_and_closed(autojump_clock):
    async with world() as there:
        client = there.client()
        await client.stream.send_all(b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n")
        assert b'{"status":"ok"}' in await all_of(client)


@pytest.mark.spec("H-11")
async def test_a_drain_ends_idle_connections_and_lets_answers_end(autojump_clock):
    async with world() as there:
        idle, busy = there.client(), there.client()
        await idle.ask("GET", "/health")
        await busy.send("POST", "/v1/chat/completions", chat_body(max_tokens=40))
        await trio.sleep(0.3)
        there.is_serving = False
        there.connections.drain()
        assert await over(idle)
        assert (await busy.answer()).json["usage"]["completion_tokens"] == 40
        assert await over(busy)
        assert await over(there.client())


@pytest.mark.spec("H-11", "H-05")
async def test_a_node_that_drains_refuses_generations(autojump_clock):
    async with world() as there:
        client = there.client()
        there.is_serving = False
        for answer in (await client.chat(), await client.complete(stream=True)):
            assert answer.status == 503
            assert int(answer.fields["retry-after"]) > 0
            assert answer.error["code"] == "unavailable"
        assert (await client.ask("GET", "/ready")).status == 503
        assert (await client.ask("GET", "/health")).status == 200
