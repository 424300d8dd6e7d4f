"""What a node is made of: every object built and joined, nothing running yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from kakeya.compute.device import LivingDevice
from kakeya.config.rpc import RpcLimits
from kakeya.config.settings import Settings
from kakeya.config.wire import WireLimits
from kakeya.console.admission import Admission
from kakeya.console.generations import Generations
from kakeya.console.service import NodeServicer
from kakeya.console.slot import ModelSlot
from kakeya.decoding import Circuits, Peers, Place, remote_sources
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.ngram import NGRAM, NgramProposer
from kakeya.drafting.service import ProposerService
from kakeya.errors import demand
from kakeya.fleet.card import ROLE_PROPOSER, Model
from kakeya.fleet.channel_calls import ChannelCalls
from kakeya.fleet.gossip import Surroundings
from kakeya.fleet.membership import Fleet, FleetSettings, build_fleet
from kakeya.fleet.service import admits
from kakeya.node import identity
from kakeya.node.dflash import Dflash, build_dflash
from kakeya.node.offers import Offers
from kakeya.node.seams import Seams
from kakeya.node.served import model_id_of
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Admit, Call, Endpoint
from kakeya.rpc.flow import Budget
from kakeya.rpc.health import Health, HealthService
from kakeya.rpc.reflection import reflection_services
from kakeya.rpc.security import guarded_by, read_fleet_key
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1.distributed_grpc import ProposerServiceStub

HEALTH_SERVICE = "grpc.health.v1.Health"
# Services whose messages stay small: no peer needs tensors' room to gossip.
SMALL_SERVICES = (
    "kakeya.v1.CapabilityService",
    HEALTH_SERVICE,
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    seams: Seams
    drafting_device: LivingDevice
    verifying_device: LivingDevice
    channels: Channels
    fleet: Fleet
    offers: Offers
    slot: ModelSlot
    admission: Admission
    generations: Generations
    endpoint: Endpoint
    ngram: NgramProposer
    dflash: Dflash
    health: Health


def build_parts(settings: Settings, seams: Seams, drafters: Sequence[DflashDrafter] = ()) -> Parts:
    """Raises Refused for settings that cannot work together.

    `drafters` are those loaded already; others join parts.dflash.service when they are.
    """
    _demand_sound(settings)
    drafting_device = seams.make_device("drafting")
    budget = Budget(settings.rpc.node_budget_bytes)
    readers = bulk.readers(WireLimits())
    channels = Channels(
        dialer=seams.dialer,
        limits=settings.rpc,
        rng=seams.rng("channels"),
        metadata=identity.call_metadata(settings, os.environ),
        budget=budget,
        readers=readers,
    )
    fleet = _fleet(settings, seams, channels)
    offers = Offers(fleet)
    slot = ModelSlot(model_id_of(settings.verifier))
    admission = Admission(
        max_running=settings.node.max_generations,
        max_waiting=settings.node.max_waiting_generations,
    )
    generations = Generations(
        settings=settings,
        slot=slot,
        peers=_peers(settings, fleet, channels),
        admission=admission,
        wall=seams.wall,
        note_speed=offers.note_verifier_speed,
    )
    ngram = NgramProposer(settings.drafting)
    drafting = ProposerService([ngram], device=drafting_device, limits=settings.drafting)
    dflash = build_dflash(drafters, seams.make_device("dflash"), settings)
    servicers = (fleet.servicer(), drafting, dflash.service, NodeServicer(fleet, generations))
    services = [servicer.service for servicer in servicers]
    names = [service.name for service in services]
    health = Health(names, max_watchers=settings.rpc.max_health_watchers)
    services += [HealthService(health).service, *reflection_services([*names, HEALTH_SERVICE])]
    return Parts(
        settings=settings,
        seams=seams,
        drafting_device=drafting_device,
        verifying_device=seams.make_device("verifying"),
        channels=channels,
        fleet=fleet,
        offers=offers,
        slot=slot,
        admission=admission,
        generations=generations,
        endpoint=Endpoint(
            services,
            limits=settings.rpc,
            admit=_admit(settings),
            max_message_bytes=_small_messages(settings.rpc),
            budget=budget,
            readers=readers,
        ),
        ngram=ngram,
        dflash=dflash,
        health=health,
    )


def _small_messages(limits: RpcLimits) -> dict[str, int]:
    """The limit of each small service; never above the general one."""
    size = min(limits.max_small_message_bytes, limits.max_message_bytes)
    return dict.fromkeys(SMALL_SERVICES, size)


def _demand_sound(settings: Settings) -> None:
    for each in settings.proposer:
        demand(each == NGRAM, "NOT_FOUND", f"no proposer {each!r} here; known: {NGRAM}")


def _admit(settings: Settings) -> Admit:
    knows_key = guarded_by(read_fleet_key(settings.fleet_key_file, os.environ))
    is_ours = admits(settings.fleet_name)

    def admit(call: Call) -> None:
        knows_key(call)
        is_ours(call)

    return admit


def _fleet(settings: Settings, seams: Seams, channels: Channels) -> Fleet:
    around = Surroundings(
        calls=ChannelCalls(channels),
        route=seams.route,
        store=seams.store,
        wall=seams.wall,
        rng=seams.rng("gossip"),
    )
    mine = FleetSettings(
        node_id=settings.node_id,
        fleet_name=settings.fleet_name,
        seeds=settings.peer,
        advertise=settings.advertise,
        platform=identity.platform_label(),
        memory_bytes=identity.memory_bytes(),
        mlx_version=identity.mlx_version(),
        models=(Model(NGRAM, ROLE_PROPOSER, "none", 0.0),),
        ttl_is_explicit=settings.fleet.ttl_s != type(settings.fleet)().ttl_s,
    )
    return build_fleet(mine, limits=settings.fleet, around=around)


def _peers(settings: Settings, fleet: Fleet, channels: Channels) -> Peers:
    """The proposers of the fleet in placement's order, each over its shared connection."""

    def places() -> list[Place]:
        return [
            Place(choice.node_id, choice.grpc_address, choice.model.model_id)
            for choice in fleet.plan(ROLE_PROPOSER, "").choices
            if not choice.is_self
        ]

    return Peers(
        places=places,
        open_source=remote_sources(lambda address: ProposerServiceStub(channels.to(address))),
        circuits=Circuits(settings.decoding),
    )
