"""Every wait has a limit, every queue a size: what happens when a peer reaches one."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from kakeya.rpc import frames
from kakeya.rpc.channel import Channels
from kakeya.rpc.flow import Budget, Rate
from kakeya.rpc.headers import encode_metadata, format_timeout, parse_timeout
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from tests.rpc.peers import LIMITS, ask, linked
from tests.rpc.raw import HELLO, call, data, frame, headers, message, raw_peer
from tests.rpc.test_calls import fails

CONNECTION = "connection error "


@pytest.mark.spec("R-10")
@pytest.mark.parametrize(
    ("greeting", "then", "limit_s"),
    [
        (b"", b"", LIMITS.handshake_s),
        (frames.PREFACE[:10], b"", LIMITS.handshake_s),
        (frames.PREFACE + frames.settings({}), b"", 2 * LIMITS.handshake_s),
        (None, headers(3)[:12], LIMITS.header_s),
        (None, headers(3, b"\x83", 0), LIMITS.header_s),
        (None, b"", LIMITS.idle_s),
    ],
    ids=["silence", "half a preface", "no ack", "half a frame", "half a block", "idle"],
)
async def test_a_peer_that_keeps_us_waiting_is_let_go(greeting, then, limit_s, autojump_clock):
    more = {} if greeting is None else {"greeting": greeting}
    async with raw_peer(**more) as peer:
        if then:
            await peer.send(then)
        await trio.sleep(limit_s - LIMITS.check_s)
        assert not peer.is_closed
        await trio.sleep(3 * LIMITS.check_s + LIMITS.farewell_s)
        assert peer.is_closed
        assert peer.endpoint.num_connections == 0


@pytest.mark.spec("R-10")
@pytest.mark.parametrize("sent", [b"", HELLO[:3], message(bytes(1000))[:50]])
async def test_a_call_whose_message_does_not_come_ends_alone(sent, autojump_clock):
    async with raw_peer() as peer:
        await peer.send(headers(3), data(3, sent, 0) if sent else b"")
        for number in range(40):  # a busy connection is not idle
            await trio.sleep(1)
            await peer.send(call(5 + 2 * number))
        assert peer.outcome(3) == "status 4"
        assert peer.endpoint.held_bytes == 0
        assert not peer.is_closed


@pytest.mark.spec("R-10")
async def test_a_peer_that_opens_no_window_loses_its_call_only(autojump_clock):
    async with raw_peer(
        greeting=frames.PREFACE + frames.settings({4: 0}) + frames.SETTINGS_ACK
    ) as peer:
        await peer.send(call(3))
        for _ in range(int(LIMITS.stall_s) + 3):
            await trio.sleep(1)
            await peer.send(frame(frames.PING, 0, 0, b"12345678"))
        assert peer.outcome(3) == "status 14"
        assert not peer.is_closed


@pytest.mark.spec("R-11")
async def test_a_silent_caller_with_a_call_open_is_probed_and_given_up(autojump_clock):
    async with raw_peer() as peer:
        await peer.send(call(3, message(ask("wait 1000").SerializeToString())))
        await trio.sleep(LIMITS.keepalive_s + 2)
        pings = peer.seen(frames.PING)
        assert len(pings) == 1
        assert peer.node.running == 1
        await peer.send(frame(frames.PING, frames.ACK, 0, pings[0].payload))
        await trio.sleep(LIMITS.keepalive_ack_s + 2)
        assert not peer.is_closed
        await trio.sleep(LIMITS.keepalive_s + LIMITS.keepalive_ack_s + 3)
        assert peer.is_closed
        assert peer.node.cancelled == 1


@pytest.mark.spec("R-11", "R-04")
async def test_a_black_hole_costs_a_deadline_then_the_connection_is_made_anew(autojump_clock):
    async with linked() as pair:
        await pair.stub.GetFleet(ask())
        await trio.sleep(0.1)
        connection = await pair.channel.connected()
        # From now on nothing goes through, and nobody says so.
        pair.dialer.streams[0][0].send_stream = _Swallow()
        with trio.move_on_after(1.0) as scope:
            await pair.stub.GetFleet(ask())
        assert scope.cancelled_caught
        await trio.sleep(LIMITS.keepalive_ack_s + 2 * LIMITS.check_s)
        assert connection.closed is not None
        assert (await pair.stub.GetFleet(ask())).fleet_name == "hello"
        assert len(pair.dialer.streams) == 2


class _Swallow:
    async def send_all(self, data) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.spec("R-12")
@pytest.mark.parametrize(
    "flood",
    [
        frame(frames.PING, 0, 0, bytes(8)),
        frames.settings({}),
        frame(frames.PRIORITY, 0, 9, bytes(5)),
        frame(0xEE, 0, 0, b"?"),
    ],
    ids=["PING", "SETTINGS", "PRIORITY", "unknown"],
)
async def test_a_flood_of_cheap_frames_ends_its_connection(flood, autojump_clock):
    async with raw_peer() as peer:
        await peer.send(flood * int(LIMITS.max_controls_per_s * Rate.BURST_S + 10))
        await trio.lowlevel.checkpoint()
        assert peer.outcome(3) == CONNECTION + "ENHANCE_YOUR_CALM"


@pytest.mark.spec("R-12")
async def test_empty_data_and_rapid_resets_end_their_connection(autojump_clock):
    cancel = (8).to_bytes(4, "big")
    many = int(LIMITS.max_resets_per_s * Rate.BURST_S + 10)
    resets = b"".join(
        headers(i) + frame(frames.RST_STREAM, 0, i, cancel) for i in range(3, 3 + 2 * many, 2)
    )
    empty = headers(3) + data(3, b"", 0) * int(LIMITS.max_controls_per_s * Rate.BURST_S + 10)
    for flood in (resets, empty):
        async with raw_peer() as peer:
            await peer.send(flood)
            assert peer.outcome(1) == CONNECTION + "ENHANCE_YOUR_CALM"
            await trio.sleep(1)
            assert peer.node.running == 0


@pytest.mark.spec("R-12")
async def test_a_continuation_flood_ends_its_connection(autojump_clock):
    async with raw_peer() as peer:
        await peer.send(headers(3, b"\x83", 0), frame(frames.CONTINUATION, 0, 3) * 100)
        assert peer.outcome(3) == CONNECTION + "ENHANCE_YOUR_CALM"


@pytest.mark.spec("R-09")
async def test_streams_over_the_limit_are_refused_and_the_others_served(autojump_clock):
    limits = replace(LIMITS, max_streams=4)
    wait = message(ask("wait 5").SerializeToString())
    async with raw_peer(limits) as peer:
        await peer.send(*(call(i, wait) for i in range(3, 13, 2)))
        assert peer.outcome(11) == "stream error REFUSED_STREAM"
        await trio.sleep(6)
        assert [peer.status(i) for i in (3, 5, 7, 9)] == ["0"] * 4


@pytest.mark.spec("R-09")
async def test_connections_over_the_limit_are_closed_at_once(autojump_clock):
    async with linked(replace(LIMITS, max_connections=1)) as pair:
        await pair.stub.GetFleet(ask())
        second = Channels(dialer=pair.dialer, limits=LIMITS, rng=pair.channels.rng)
        await pair.nursery.start(second.serve)
        told = await fails(type(pair.stub)(second.to("there:1")).GetFleet(ask()))
        assert told[0] == "UNAVAILABLE"
        assert (await pair.stub.GetFleet(ask())).fleet_name == "hello"


@pytest.mark.spec("R-08")
async def test_messages_beyond_the_byte_budget_are_refused_and_their_bytes_given_back(
    autojump_clock,
):
    limits = replace(LIMITS, connection_budget_bytes=10_000, node_budget_bytes=15_000)
    async with linked(limits) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(pair.stub.GetFleet, ask("wait 5"))
        assert (await fails(pair.stub.GetFleet(ask("x" * 12_000))))[0] == "RESOURCE_EXHAUSTED"
        assert (await pair.stub.GetFleet(ask("x" * 2_000))).fleet_name == "x" * 2_000
        await trio.sleep(6)
        assert pair.endpoint.held_bytes == 0


@pytest.mark.spec("R-08")
async def test_a_reader_that_does_not_read_is_not_sent_more_than_its_window(autojump_clock):
    limits = replace(LIMITS, stream_window_bytes=10_000, stall_s=1000.0)
    async with linked(limits) as pair:
        request = node_pb2.GenerateRequest(max_tokens=100, text="x" * 1000)
        async with aclosing(pair.stub.Generate(request)) as events:
            await anext(events)
            await trio.sleep(30)
            assert pair.channels.budget.held_bytes <= 12_000
            assert len([event async for event in events]) == 99


def test_a_budget_never_holds_more_than_any_limit_above_it():
    node = Budget(100)
    one, other = Budget(80, node), Budget(80, node)
    assert one.take(60)
    assert not other.take(50)
    assert not one.take(30)
    assert other.take(40)
    one.give(60)
    assert (node.held_bytes, one.held_bytes, other.held_bytes) == (40, 0, 40)


def test_a_rate_lets_bursts_pass_and_then_its_rate():
    rate = Rate(10.0)
    assert sum(rate.allows(0.0) for _ in range(100)) == 40
    assert sum(rate.allows(1.0) for _ in range(100)) == 10


@pytest.mark.spec("R-05")
@pytest.mark.parametrize("left_s", [0.0, 1e-9, 0.0499999, 0.05, 0.25, 1.0, 4.9999, 61.3, 9e4, 1e9])
def test_a_timeout_is_never_shorter_than_what_is_left_and_hardly_longer(left_s):
    sent_s = parse_timeout(format_timeout(left_s))
    assert left_s - 1e-9 <= sent_s <= max(left_s * 1.1 + 2e-6, 2e-6)


def test_what_may_not_be_sent_as_metadata_fails_the_call_before_it_leaves():
    for name, value in (
        ("X-Upper", "a"), ("x", "a\r\nb"), ("x-bin", "text"), ("x", b"bytes"),
        ("grpc-timeout", "1S"), ("te", "x"), ("x y", "z"), ("", "z"), ("x", "ď"),
    ):  # fmt: skip
        with pytest.raises(RpcFailedError) as caught:
            encode_metadata([(name, value)])
        assert status_name(caught.value) == "INVALID_ARGUMENT"


@pytest.mark.spec("R-09")
async def test_waiting_calls_get_their_streams_in_their_order(autojump_clock):
    limits = replace(LIMITS, max_streams=1)
    async with linked(limits) as pair:
        await pair.stub.GetFleet(ask())
        order = []

        async def one(number: int) -> None:
            with trio.move_on_after(0.5 if number % 3 == 2 else 1000):
                await pair.stub.GetFleet(ask("wait 1"))
                order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(one, number)
                await trio.sleep(0.01)
        assert order == [0, 1, 3, 4, 6, 7]
