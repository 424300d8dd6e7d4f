"""Messages with tensors over calls: sent from several buffers, read where they arrived."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio

from kakeya.rpc.channel import Channel, Channels
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from kakeya.wire.tensor import TensorView
from tests.rpc.drafter import FORMS, READERS, WIRE, Drafter, array, expected, restored, tensor
from tests.rpc.peers import LIMITS, LinkDialer

SERVICE = "kakeya.v1.DFlashProposerService"
FORM_NAMES = list(FORMS)


@dataclass
class Linked:
    node: Drafter
    endpoint: Endpoint
    channels: Channels
    channel: Channel
    stub: DFlashProposerServiceStub


@asynccontextmanager
async def linked(*, serves="bulk", calls="bulk", readers=READERS, node: Any = None):
    """A caller and a Drafter over a link in memory, each with or without readers."""
    node = node or Drafter(serves)
    endpoint = Endpoint(
        [node.service], limits=LIMITS, readers=readers if serves == "bulk" else None
    )
    async with trio.open_nursery() as nursery:
        channels = Channels(
            dialer=LinkDialer({"there:1": endpoint}, nursery),
            limits=LIMITS,
            rng=random.Random(7),
            readers=readers if calls == "bulk" else None,
        )
        await nursery.start(channels.serve)
        channel = channels.to("there:1")
        yield Linked(node, endpoint, channels, channel, DFlashProposerServiceStub(channel))
        nursery.cancel_scope.cancel()


async def fails(call) -> tuple[str, str]:
    with pytest.raises(RpcFailedError) as caught:
        await call
    return status_name(caught.value), status_text(caught.value)


# One frame, several frames, and more than the windows of a new stream.
ROWS = [1, 300, 3000]


@pytest.mark.spec("W-14")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("calls", FORM_NAMES)
@pytest.mark.parametrize("serves", FORM_NAMES)
async def test_tensors_arrive_as_they_were_sent_whatever_form_either_side_has(
    serves, calls, rows, autojump_clock
):
    async with linked(serves=serves, calls=calls) as pair:
        aux = [tensor(calls, rows, value) for value in range(3)]
        request = FORMS[calls].SeedContextRequest(session_id="s", aux=aux, positions=range(rows))
        answer = await pair.stub.SeedContext(request)
        assert answer.context_len == 3 * rows
        heard = pair.node.heard[0]
        assert isinstance(heard, FORMS[serves].SeedContextRequest)
        assert (heard.session_id, list(heard.positions)) == ("s", list(range(rows)))
        assert [bytes(t.data) for t in heard.aux] == [
            array(rows, value).bits.tobytes() for value in range(3)
        ]
        answer = await pair.stub.Restore(pb.RestoreRequest(prompt_ids=range(rows)))
        assert isinstance(answer, FORMS[calls].RestoreResponse)
        assert restored(answer) == expected(rows)
        assert (list(answer.evicted_positions), answer.prompt_len) == ([4, 5], rows)


@pytest.mark.spec("R-20")
async def test_a_large_message_with_a_reader_is_read_where_it_arrived(autojump_clock):
    async with linked() as pair:
        request = bulk.SeedContextRequest("s", [tensor("bulk", 3000)] * 2, ())
        await pair.stub.SeedContext(request)
        first, second = pair.node.heard[0].aux
        assert isinstance(first, TensorView)
        assert first.data.readonly
        assert first.data.obj is second.data.obj


@pytest.mark.spec("R-08")
async def test_the_bytes_of_a_message_are_given_back_when_its_call_ends(autojump_clock):
    async with linked() as pair:
        for _ in range(2):
            await pair.stub.SeedContext(bulk.SeedContextRequest("s", [tensor("bulk", 3000)], ()))
            await pair.stub.Restore(pb.RestoreRequest(prompt_ids=range(3000)))
        await trio.testing.wait_all_tasks_blocked()
        assert pair.endpoint.held_bytes == 0
        assert pair.channels.budget.held_bytes == 0


async def raw_call(pair: Linked, method: str, content: bytes) -> Any:
    """A call with these bytes for its message, through purerpc's own stub."""

    class Bytes:
        def SerializeToString(self) -> bytes:
            return content

    stream = await pair.channel.start_request("http", SERVICE, method)
    stream.expect_message_type(pb.SeedContextResponse)
    await stream.send_message(Bytes())
    await stream.close()
    return await stream.receive_message()


@pytest.mark.spec("W-14", "W-15", "R-20")
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x12\x05\x1a\x04abc", ("INVALID_ARGUMENT", "the message does not parse")),
        (b"\x13\x14", ("INVALID_ARGUMENT", "the message does not parse")),
        (
            b"\x12\x00" * 9000,
            ("RESOURCE_EXHAUSTED", "more than 8192 fields, which is the limit"),
        ),
    ],
)
async def test_what_a_reader_does_not_take_is_refused_and_the_connection_lives(
    content, told, autojump_clock
):
    async with linked() as pair:
        assert await fails(raw_call(pair, "SeedContext", content)) == told
        assert (await raw_call(pair, "SeedContext", b"")).context_len == 0


@pytest.mark.spec("R-20")
async def test_an_answer_that_a_reader_does_not_take_fails_its_call_alone(autojump_clock):
    few = bulk.readers(replace(WIRE, max_bulk_fields=5))
    async with linked(readers=few) as pair:
        told = await fails(pair.stub.Restore(pb.RestoreRequest(prompt_ids=[1])))
        assert told == (
            "RESOURCE_EXHAUSTED",
            "the peer's answer: more than 5 fields, which is the limit",
        )
        answer = await pair.stub.SeedContext(bulk.SeedContextRequest("s"))
        assert answer.context_len == 0
        assert pair.channels.budget.held_bytes == 0


@pytest.mark.spec("R-03")
async def test_an_answer_in_pieces_that_is_too_large_is_refused(autojump_clock):
    class Large(Drafter):
        async def SeedContext(self, input_message):  # type: ignore[override]
            # An answer of the wrong kind, but its size is looked at first.
            return bulk.SeedContextRequest("s", [tensor("bulk", 3000)], ())

    node = Large()
    async with linked(node=node) as pair:
        small = Endpoint(
            [node.service], limits=LIMITS, readers=READERS, max_message_bytes={SERVICE: 1000}
        )
        pair.channels.dialer.endpoints["small:1"] = small
        stub = DFlashProposerServiceStub(pair.channels.to("small:1"))
        status, text = await fails(stub.SeedContext(bulk.SeedContextRequest("s")))
        assert status == "RESOURCE_EXHAUSTED"
        assert text.startswith("the answer has 3072")
        assert text.endswith("the limit is 1000 bytes")
