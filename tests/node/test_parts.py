"""What build_parts joins: limits per service, and one budget for calls in and out."""

from __future__ import annotations

import random
from contextlib import aclosing, asynccontextmanager

import pytest
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.config.settings import Settings
from kakeya.node.identity import call_metadata
from kakeya.node.parts import build_parts
from kakeya.node.seams import embedded_seams
from kakeya.rpc.channel import Channels
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.grpc.health.v1 import health_pb2
from kakeya.wire.pb.grpc.health.v1.health_grpc import HealthStub
from kakeya.wire.pb.grpc.reflection.v1 import reflection_pb2
from kakeya.wire.pb.grpc.reflection.v1.reflection_grpc import ServerReflectionStub
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import CapabilityServiceStub, ProposerServiceStub
from tests.rpc.peers import LinkDialer

SMALL_BYTES = 2_000


@asynccontextmanager
async def joined(limits):
    """The parts of a node, and a channel to its endpoint over a link in memory."""
    settings = Settings(verifier="none", rpc=limits)
    parts = build_parts(settings, embedded_seams(settings))
    async with trio.open_nursery() as nursery:
        channels = Channels(
            dialer=LinkDialer({"there:1": parts.endpoint}, nursery),
            limits=RpcLimits(),
            rng=random.Random(1),
            metadata=call_metadata(settings, {}),
        )
        await nursery.start(channels.serve)
        await nursery.start(parts.drafting_device.serve)
        yield parts, channels.to("there:1")
        nursery.cancel_scope.cancel()


async def status_of(call):
    status = "OK"
    with trio.fail_after(2):
        try:
            await call
        except* RpcFailedError as group:
            status = status_name(only(group))
    return status


def only(error):
    """The one error inside: stubs of streams have a nursery of their own."""
    return only(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def reflect(channel, request):
    async def ask():
        yield request

    async with aclosing(ServerReflectionStub(channel).ServerReflectionInfo(ask())) as answers:
        return [each async for each in answers]


@pytest.mark.spec("R-03")
async def test_gossip_health_and_reflection_take_small_messages_and_drafting_large_ones():
    async with joined(RpcLimits(max_small_message_bytes=SMALL_BYTES)) as (_, channel):
        text = "x" * SMALL_BYTES
        card = pb.NodeCapability(node_id=text)
        gossip = pb.ExchangeCapabilitiesRequest(known_nodes=[card])
        small = [
            CapabilityServiceStub(channel).ExchangeCapabilities(gossip),
            HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=text)),
            reflect(channel, reflection_pb2.ServerReflectionRequest(host=text)),
        ]
        for call in small:
            assert await status_of(call) == "RESOURCE_EXHAUSTED"
        ids = [300] * SMALL_BYTES
        large = pb.ProposeBlockRequest(
            model_id="ngram", block_size=4, num_steps=1, committed_token_ids=ids
        )
        assert await status_of(ProposerServiceStub(channel).ProposeBlock(large)) == "OK"


@pytest.mark.spec("R-08")
async def test_calls_in_and_out_share_one_budget():
    async with joined(RpcLimits(node_budget_bytes=50_000)) as (parts, channel):
        request = pb.ProposeBlockRequest(
            model_id="ngram", block_size=4, num_steps=1, committed_token_ids=[300] * 20_000
        )
        stub = ProposerServiceStub(channel)
        assert await status_of(stub.ProposeBlock(request)) == "OK"
        # What the node's own calls hold is not there for those of its peers.
        assert parts.channels.budget.take(30_000)
        assert await status_of(stub.ProposeBlock(request)) == "RESOURCE_EXHAUSTED"
        parts.channels.budget.give(30_000)
        assert await status_of(stub.ProposeBlock(request)) == "OK"
