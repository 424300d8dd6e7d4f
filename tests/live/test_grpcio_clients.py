"""grpcio on the other side of a real node: the contract as a stranger speaks it."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
import trio

from kakeya.compute.device import ThreadDevice
from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.proposer import Draft
from kakeya.drafting.service import ProposerService
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.cli.nodes import eventually, fleet_view
from tests.interop.grpcio_peer import in_thread, serving
from tests.live.garbage import CAPABILITY, announce, card_of, exchange, probe, propose

# Field 200, length-delimited: nothing the contract knows today.
UNKNOWN_FIELD = bytes([0xC2, 0x0C, 5]) + b"later"


def statuses(channel: grpc.Channel, **request) -> tuple[grpc.StatusCode, str]:
    asked = {"committed_token_ids": [1, 2, 1], "block_size": 2, "num_steps": 1} | request
    with pytest.raises(grpc.RpcError) as caught:
        propose(channel)(pb.ProposeBlockRequest(**asked), timeout=10)
    return caught.value.code(), caught.value.details()


def test_both_capability_calls_are_answered(pair):
    with grpc.insecure_channel(pair.attic.grpc) as channel:
        own = probe(channel)(pb.GetNodeCapabilityRequest(), timeout=10).node
        view = exchange(channel)(pb.ExchangeCapabilitiesRequest(), timeout=10)
    assert own.node_id == "attic"
    assert own.grpc_address == pair.attic.grpc
    assert {node.node_id for node in view.known_nodes} >= {"attic", "cellar"}


def test_unknown_roles_and_fields_reach_a_third_node_byte_for_byte(pair):
    card = card_of(1, node_id="tomorrow")
    card.models[0].role = 17
    frame = card.SerializeToString() + UNKNOWN_FIELD
    later = pb.NodeCapability.FromString(frame)
    announce(pair.attic.grpc, later)

    def seen_at_cellar() -> bool:
        with grpc.insecure_channel(pair.cellar.grpc) as channel:
            ask = channel.unary_unary(f"/{CAPABILITY}/ExchangeCapabilities")
            return frame in ask(b"", timeout=10)

    eventually(seen_at_cellar)


def test_exactly_block_size_ids_come(pair):
    with grpc.insecure_channel(pair.cellar.grpc) as channel:
        for model_id in ("", "ngram"):
            request = pb.ProposeBlockRequest(
                committed_token_ids=[1, 2, 3, 1, 2], block_size=5, num_steps=1, model_id=model_id
            )
            assert list(propose(channel)(request, timeout=10).token_ids) == [3, 1, 2, 3, 1]


def test_proposals_that_cannot_be_made_are_refused_with_what_is_served(pair):
    wrong = grpc.StatusCode.INVALID_ARGUMENT
    with grpc.insecure_channel(pair.cellar.grpc) as channel:
        code, why = statuses(channel, model_id="dflash")
        assert code == grpc.StatusCode.NOT_FOUND
        assert "dflash" in why
        assert "ngram" in why
        for name, value in (
            ("committed_token_ids", []),
            ("block_size", 0),
            ("block_size", 65),
            ("num_steps", 0),
            ("num_steps", 1 << 20),
        ):
            code, why = statuses(channel, **{name: value})
            assert (code, name in why) == (wrong, True), (name, value, code, why)


class Slow:
    """Works in short jobs, as the device wants it, for 10 s in all."""

    model_id = "slow"

    def __init__(self) -> None:
        self.num_jobs = 0
        self.proposed = threading.Event()

    def jobs(self, committed_ids, *, num_drafts, num_steps):
        while self.num_jobs < 500:
            self.num_jobs += 1
            time.sleep(0.02)  # a thread needs the real clock
            yield
        self.proposed.set()
        return Draft((0,) * num_drafts)


async def test_a_deadline_of_50_ms_on_a_slow_proposer_stops_the_work():

    slow = Slow()
    limits = DraftingLimits(index_piece_len=1)

    def ask(port: int) -> grpc.StatusCode:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = pb.ProposeBlockRequest(
                committed_token_ids=range(1000), block_size=2, num_steps=1
            )
            with pytest.raises(grpc.RpcError) as caught:
                propose(channel)(request, timeout=0.05)
            return caught.value.code()

    async with trio.open_nursery() as nursery:
        device = ThreadDevice(name="slow", max_waiting=8)
        await nursery.start(device.serve)
        service = ProposerService([slow], device=device, limits=limits).service
        async with serving([service]) as server:
            assert await in_thread(ask, server.port) == grpc.StatusCode.DEADLINE_EXCEEDED
            await trio.sleep(0.1)
            num_jobs = slow.num_jobs
            await trio.sleep(0.1)
            assert slow.num_jobs == num_jobs
            assert num_jobs < 20
            assert not slow.proposed.is_set()
        nursery.cancel_scope.cancel()


def test_a_card_of_4000_models_harms_nobody(pair):
    try:
        announce(pair.attic.grpc, card_of(1, node_id="huge", models=4000))
    except grpc.RpcError as error:
        assert error.code() in (  # noqa: PT017 - either answer is allowed, a wrong one is not
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
    announce(pair.attic.grpc, card_of(2, node_id="modest"))
    assert {"modest", "cellar"} <= set(fleet_view(pair.attic, pair.home))
    assert pair.attic.process.poll() is None


def test_a_message_over_the_limit_fails_alone(pair):
    with grpc.insecure_channel(pair.attic.grpc) as channel:
        ask = channel.unary_unary(f"/{CAPABILITY}/ExchangeCapabilities")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"\x0a\x00" * (3 << 20), timeout=10)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # The same connection goes on.
        assert probe(channel)(pb.GetNodeCapabilityRequest(), timeout=10).node.node_id == "attic"
