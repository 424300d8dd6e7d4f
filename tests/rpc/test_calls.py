"""What a caller and a handler see of a call, over a link in memory on the mock clock."""

from __future__ import annotations

import gc
import warnings
from contextlib import aclosing
from dataclasses import replace

import purerpc
import pytest
import trio

from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from tests.rpc.peers import LIMITS, ask, linked


async def fails(call) -> tuple[str, str]:
    with pytest.raises(RpcFailedError) as caught:
        await call
    return status_name(caught.value), status_text(caught.value)


async def test_a_unary_call_brings_the_answer(autojump_clock):
    async with linked() as pair:
        for number in range(3):
            answer = await pair.stub.GetFleet(ask(f"hello {number}"))
            assert answer.fleet_name == f"hello {number}"


async def test_a_unary_call_over_50_ms_links_takes_one_round_trip(autojump_clock):
    async with linked(delay_s=0.05) as pair:
        await pair.stub.GetFleet(ask())
        begun = trio.current_time()
        await pair.stub.GetFleet(ask())
        assert trio.current_time() - begun == pytest.approx(0.1)


async def test_the_first_call_on_a_connection_needs_no_extra_round_trip(autojump_clock):
    async with linked(delay_s=0.05) as pair:
        begun = trio.current_time()
        await pair.stub.GetFleet(ask())
        assert trio.current_time() - begun == pytest.approx(0.1)


async def test_answers_of_a_streaming_call_come_one_by_one(autojump_clock):
    async with linked() as pair:
        request = node_pb2.GenerateRequest(max_tokens=5, temperature=1.0)
        times = []
        async with aclosing(pair.stub.Generate(request)) as events:
            async for event in events:
                times.append((event.ids[0], trio.current_time()))
        begun = times[0][1]
        assert [(n, t - begun) for n, t in times] == [(n, n * 1.0) for n in range(5)]


async def test_a_streaming_call_ends_with_the_handlers_refusal(autojump_clock):
    async with linked() as pair:
        request = node_pb2.GenerateRequest(max_tokens=2, raw=True)
        events = pair.stub.Generate(request)
        assert [(await anext(events)).ids[0] for _ in range(2)] == [0, 1]
        assert await fails(anext(events)) == ("ABORTED", "as asked")


@pytest.mark.spec("R-07")
async def test_a_refusal_keeps_its_status_and_its_text_in_any_script(autojump_clock):
    async with linked() as pair:
        told = await fails(pair.stub.GetFleet(ask("refuse NOT_FOUND 100 % no dď한\n")))
        assert told == ("NOT_FOUND", "100 % no dď한\n")


@pytest.mark.spec("R-07")
async def test_a_handlers_own_error_is_told_with_a_fixed_text(autojump_clock):
    async with linked() as pair:
        assert await fails(pair.stub.GetFleet(ask("fail"))) == ("INTERNAL", "internal error")
        assert (await pair.stub.GetFleet(ask())).fleet_name == "hello"


@pytest.mark.spec("R-05", "R-06")
async def test_the_callers_deadline_reaches_the_handler_and_stops_it(autojump_clock):
    async with linked(delay_s=0.01) as pair:
        with pytest.raises(trio.TooSlowError), trio.fail_after(1.0):
            await pair.stub.GetFleet(ask("wait 100"))
        assert pair.node.calls[0].deadline - trio.current_time() < 0.1
        await trio.sleep(0.1)
        assert (pair.node.cancelled, pair.node.running) == (1, 0)
        assert pair.endpoint.num_calls == 0


@pytest.mark.spec("R-05")
async def test_a_deadline_fires_on_the_serving_side_alone(autojump_clock):
    """The caller lives on, so what it gets is the server's own answer."""
    async with linked() as pair:
        call = pair.channel.client("kakeya.node.v1.NodeService")
        from kakeya.rpc.call import OutgoingCall

        raw = OutgoingCall(pair.channel, "/kakeya.node.v1.NodeService/GetFleet", ())
        with trio.move_on_after(1.0):
            await raw.send([ask("wait 100").SerializeToString()], ends=True)
        told = await fails(raw.receive())
        assert told[0] == "DEADLINE_EXCEEDED"
        assert pair.node.cancelled == 1
        assert call is not None


@pytest.mark.spec("R-06")
async def test_cancelling_a_call_cancels_its_handler(autojump_clock):
    async with linked(delay_s=0.05) as pair:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pair.stub.GetFleet, ask("wait 100"))
                await trio.sleep(1)
                assert pair.node.running == 1
                scope.cancel()
        await trio.sleep(0.06)
        assert (pair.node.running, pair.node.cancelled) == (0, 1)


@pytest.mark.spec("R-06")
async def test_closing_the_iterator_cancels_the_handler(autojump_clock):
    async with linked() as pair:
        request = node_pb2.GenerateRequest(max_tokens=1000, temperature=1.0)
        async with aclosing(pair.stub.Generate(request)) as events:
            async for _ in events:
                break
        gc.collect()
        await trio.sleep(0.5)
        assert (pair.node.running, pair.node.cancelled) == (0, 1)
        assert pair.endpoint.num_calls == 0


@pytest.mark.spec("R-04")
async def test_a_lost_connection_fails_open_calls_at_once_and_heals(autojump_clock):
    async with linked() as pair:

        async def cut():
            await trio.sleep(3)
            await pair.dialer.streams[0][1].aclose()

        pair.nursery.start_soon(cut)
        begun = trio.current_time()
        told = await fails(pair.stub.GetFleet(ask("wait 100")))
        assert told[0] == "UNAVAILABLE"
        assert trio.current_time() - begun == pytest.approx(3)
        await trio.sleep(0.1)
        assert (pair.node.running, pair.node.cancelled) == (0, 1)
        assert (await pair.stub.GetFleet(ask())).fleet_name == "hello"


@pytest.mark.spec("R-13")
async def test_an_unknown_peer_is_unavailable_and_left_alone_for_a_while(autojump_clock):
    async with linked() as pair:
        stub_of_nobody = type(pair.stub)(pair.channels.to("nobody:1"))
        for _ in range(3):
            assert (await fails(stub_of_nobody.GetFleet(ask())))[0] == "UNAVAILABLE"
        pair.dialer.endpoints["nobody:1"] = pair.endpoint
        assert (await fails(stub_of_nobody.GetFleet(ask())))[0] == "UNAVAILABLE"
        await trio.sleep(LIMITS.backoff_s * 1.3)
        assert (await stub_of_nobody.GetFleet(ask())).fleet_name == "hello"


@pytest.mark.spec("R-03")
async def test_a_message_over_the_limit_fails_alone(autojump_clock):
    limits = replace(LIMITS, max_message_bytes=100_000)
    async with linked(max_message_bytes={"kakeya.node.v1.NodeService": 1000}) as pair:
        slow = []

        async def other():
            slow.append(await pair.stub.GetFleet(ask("wait 5")))

        pair.nursery.start_soon(other)
        await trio.sleep(0.1)
        for size in (2_000, 400_000, 5_000_000):
            told = await fails(pair.stub.GetFleet(ask("x" * size)))
            assert told[0] == "RESOURCE_EXHAUSTED"
            assert "1000" in told[1]
        assert (await fails(pair.stub.GetFleet(ask("big 2000"))))[0] == "RESOURCE_EXHAUSTED"
        await trio.sleep(6)
        assert len(slow) == 1
        assert len(pair.dialer.streams) == 1
        assert pair.endpoint.held_bytes == 0
    async with linked(limits) as pair:
        told = await fails(pair.stub.GetFleet(ask("x" * 200_000)))
        assert told[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("size", [0, 1, 16_379, 16_380, 70_000, 300_000, 3_000_000])
async def test_messages_of_any_size_arrive_whole_both_ways(autojump_clock, size):
    async with linked() as pair:
        text = "k" * size
        assert (await pair.stub.GetFleet(ask(text))).fleet_name == text
        assert len((await pair.stub.GetFleet(ask(f"big {size}"))).fleet_name) == size
        assert pair.endpoint.held_bytes == 0
        assert pair.channels.budget.held_bytes == 0


@pytest.mark.spec("R-15")
async def test_a_drain_lets_calls_finish_and_sends_new_ones_elsewhere(autojump_clock):
    async with linked(delay_s=0.01) as pair:
        answers = []

        async def early():
            answers.append(await pair.stub.GetFleet(ask("wait 5")))

        pair.nursery.start_soon(early)
        await trio.sleep(1)
        with trio.fail_after(10):
            await pair.endpoint.drain()
        assert trio.current_time() > 4
        await trio.sleep(0.1)
        assert len(answers) == 1
        assert (await fails(pair.stub.GetFleet(ask())))[0] == "UNAVAILABLE"


@pytest.mark.spec("R-09")
async def test_calls_wait_for_a_stream_when_the_peer_allows_few(autojump_clock):
    limits = replace(LIMITS, max_streams=4)
    async with linked(limits) as pair:
        await pair.stub.GetFleet(ask())
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(pair.stub.GetFleet, ask("wait 1"))
        assert trio.current_time() - begun == pytest.approx(3)


async def test_a_method_that_nobody_serves_is_unimplemented(autojump_clock):
    async with linked() as pair:
        from kakeya.wire.pb.kakeya.v1 import distributed_grpc, distributed_pb2

        stub = distributed_grpc.CapabilityServiceStub(pair.channel)
        method = next(name for name in vars(stub) if not name.startswith("_"))
        request = distributed_pb2.DESCRIPTOR.services_by_name["CapabilityService"]
        message = getattr(distributed_pb2, request.methods_by_name[method].input_type.name)()
        assert (await fails(getattr(stub, method)(message)))[0] == "UNIMPLEMENTED"


async def test_stubs_made_by_stock_purerpc_work_and_end_what_they_drop(autojump_clock):
    async with linked() as pair:
        stock = purerpc.Client("kakeya.node.v1.NodeService", pair.channel)
        methods = pair.node.service.methods
        one = stock.get_method_stub("GetFleet", methods["GetFleet"].signature)
        assert (await one(ask())).fleet_name == "hello"
        assert await fails(one(ask("refuse ABORTED why"))) == ("ABORTED", "why")
        many = stock.get_method_stub("Generate", methods["Generate"].signature)
        signature = methods["Generate"].signature
        assert signature.response_type is node_pb2.GenerateEvent
        request = node_pb2.GenerateRequest(max_tokens=100, temperature=1.0)
        with warnings.catch_warnings():
            # Trio warns of the iterator that purerpc leaves to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            async with aclosing(many(request)) as events:
                async for _ in events:
                    break
            gc.collect()
            await trio.sleep(0.5)
        assert (pair.node.running, pair.node.cancelled) == (0, 1)
