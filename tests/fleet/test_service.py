"""CapabilityService as a caller sees it, and who is let in."""

from __future__ import annotations

import pytest
import trio

from kakeya.errors import Refused
from kakeya.fleet.calls import View
from kakeya.fleet.discovery import udp_route
from kakeya.fleet.frames import framed
from kakeya.fleet.service import admits, demand_same_fleet, fleet_metadata, host_of
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.fleet.cards import frame, message
from tests.fleet.world import Links, SeenCall, World


def call(service="kakeya.v1.CapabilityService", metadata=(), peer="10.0.0.9:1234") -> SeenCall:
    return SeenCall(service, "ExchangeCapabilities", tuple(metadata), peer)


@pytest.mark.spec("F-10")
def test_only_calls_of_the_same_fleet_are_let_in():
    admit = admits("home")
    admit(call(metadata=fleet_metadata("home")))
    admit(call(metadata=[("other-key", "x"), ("kakeya-fleet", b"home")]))
    for metadata in (fleet_metadata("work"), (), [*fleet_metadata("home"), *fleet_metadata("b")]):
        with pytest.raises(Refused, match="this node is of fleet 'home'") as refused:
            admit(call(metadata=metadata))
        assert refused.value.status == "FAILED_PRECONDITION"


@pytest.mark.spec("F-10")
def test_a_call_of_the_bare_contract_belongs_to_the_default_fleet():
    demand_same_fleet((), "kakeya")
    with pytest.raises(Refused):
        demand_same_fleet((), "home")


@pytest.mark.spec("F-10")
@pytest.mark.parametrize(
    ("service", "is_guarded"),
    [
        ("kakeya.v1.ProposerService", True),
        ("kakeya.v1.DFlashProposerService", True),
        ("kakeya.node.v1.NodeService", False),
        ("grpc.health.v1.Health", False),
    ],
)
def test_all_services_of_the_contract_are_guarded_and_no_others(service, is_guarded):
    try:
        admits("home")(call(service=service, metadata=fleet_metadata("work")))
    except Refused:
        assert is_guarded
    else:
        assert not is_guarded


@pytest.mark.parametrize("name", ["", "two words", "häuschen", "x" * 65, "a\r\nb"])
def test_a_fleet_name_that_metadata_cannot_hold_is_refused(name):
    with pytest.raises(Refused, match="fleet name"):
        fleet_metadata(name)


@pytest.mark.spec("F-03")
async def test_an_exchange_answers_with_the_union_and_keeps_unknown_bytes(autojump_clock):
    async with World.open(seed=1) as world:
        await world.start("attic")
        now = world.wall_of("attic")()
        newer = message("newer", stamp=now, models=[{"model_id": "m", "role": 99}])
        odd = framed(b"\xa2\x06\x03new" + newer.SerializeToString())
        plain = frame("plain", stamp=now)
        answer = await world.push_raw("attic", odd + plain)
        assert odd in answer
        assert plain in answer
        view = pb.ExchangeCapabilitiesResponse.FromString(answer)
        assert [n.node_id for n in view.known_nodes] == ["attic", "newer", "plain"]
        # And another peer gets them as they were sent.
        assert odd in await world.push_raw("attic", b"")


@pytest.mark.spec("F-05")
async def test_a_probe_answers_with_a_fresh_own_card_and_changes_nothing_else(autojump_clock):
    async with World.open(seed=2) as world:
        await world.start("attic")
        await world.push_raw("attic", frame("cellar", stamp=world.wall_of("attic")()))
        before = world.sees("attic")
        links = Links(world, "stranger", "kakeya")
        first = pb.GetNodeCapabilityResponse.FromString(await links.probe("attic:50051")).node
        await trio.sleep(1)
        second = pb.GetNodeCapabilityResponse.FromString(await links.probe("attic:50051")).node
        assert first.node_id == second.node_id == "attic"
        assert second.announced_at_unix > first.announced_at_unix
        assert second.announced_at_unix == pytest.approx(world.wall_of("attic")(), abs=0.1)
        assert world.sees("attic") == before


@pytest.mark.parametrize(
    ("peer", "host"),
    [("10.0.0.2:1", "10.0.0.2"), ("[::1]:5", "::1"), ("", ""), ("memory", ""), ("None", "")],
)
def test_the_callers_host_is_told_where_the_transport_says_it(peer, host):
    assert host_of(call(peer=peer)) == host


def test_a_view_is_a_message_for_stubs_and_services():
    request = pb.ExchangeCapabilitiesRequest(known_nodes=[message()])
    view = View.FromString(request.SerializeToString())
    assert view.SerializeToString() == request.SerializeToString()
    again = View()
    again.ParseFromString(memoryview(view.content))
    assert again.content == view.content
    assert View.DESCRIPTOR.full_name == "kakeya.v1.ExchangeCapabilitiesRequest"


@pytest.mark.spec("F-14")
async def test_the_route_to_a_neighbour_starts_at_loopback():
    with trio.fail_after(2):
        assert await udp_route("127.0.0.1", 50051) == "127.0.0.1"
        assert await udp_route("localhost", 50051) in ("127.0.0.1", "::1")
        assert await udp_route("no such host", 50051) == ""


async def test_both_calls_of_the_contract_are_served_with_views(autojump_clock):
    async with World.open(seed=3) as world:
        await world.start("attic")
        service = world.fleet("attic").servicer().service
        assert service.name == "kakeya.v1.CapabilityService"
        assert sorted(service.methods) == ["ExchangeCapabilities", "GetNodeCapability"]
        exchange = service.methods["ExchangeCapabilities"]
        assert exchange.signature.request_type is View
        answer = await exchange.method_fn(View(b""), request=call(peer="attic:1"))
        seen = pb.ExchangeCapabilitiesResponse.FromString(answer.SerializeToString())
        assert [node.node_id for node in seen.known_nodes] == ["attic"]
