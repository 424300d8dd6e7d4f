"""What a node is made of: every object built and joined, nothing running yet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import trio

from kakeya.compute.device import LivingDevice
from kakeya.config.rpc import RpcLimits
from kakeya.config.settings import Settings
from kakeya.config.wire import WireLimits
from kakeya.console.admission import Admission
from kakeya.console.generations import Generations
from kakeya.console.overview import Overview, SessionView
from kakeya.console.service import NodeServicer
from kakeya.console.slot import ModelSlot
from kakeya.decoding import Catalog, Keeper, Peers
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.drafter_card import DrafterServicer
from kakeya.drafting.ngram import NGRAM, NgramProposer
from kakeya.drafting.service import ProposerService
from kakeya.drafting.sessions import SessionCounts
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.errors import demand
from kakeya.fleet.card import ROLE_PROPOSER, Model
from kakeya.fleet.channel_calls import ChannelCalls
from kakeya.fleet.gossip import Surroundings
from kakeya.fleet.membership import Fleet, FleetSettings, build_fleet
from kakeya.fleet.service import admits
from kakeya.metrics import Metrics
from kakeya.node import identity
from kakeya.node.dflash import Dflash, build_dflash
from kakeya.node.offers import Offers
from kakeya.node.places import Proposers, peers_of
from kakeya.node.seams import Seams
from kakeya.node.served import model_id_of
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Admit, Call, Endpoint
from kakeya.rpc.flow import Budget
from kakeya.rpc.health import Health, HealthService
from kakeya.rpc.reflection import reflection_services
from kakeya.rpc.security import guarded_by, read_fleet_key
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.node.v1.drafters_grpc import DrafterServiceStub

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
    proposing_device: LivingDevice
    verifying_device: LivingDevice
    channels: Channels
    fleet: Fleet
    offers: Offers
    slot: ModelSlot
    admission: Admission
    metrics: Metrics
    peers: Peers
    keeper: Keeper
    catalog: Catalog
    generations: Generations
    overview: Overview
    endpoint: Endpoint
    ngram: NgramProposer
    drafting: ProposerService
    proposers_loaded: trio.Event
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
    metrics = Metrics(version=version("kakeya"))
    slot = ModelSlot(model_id_of(settings.verifier))
    admission = Admission(
        max_running=settings.node.max_generations,
        max_waiting=settings.node.max_waiting_generations,
    )
    dflash = build_dflash(drafters, seams.make_device("dflash"), settings)
    catalog = Catalog(
        open_stub=lambda address: DrafterServiceStub(channels.to(address)),
        limits=settings.decoding,
    )
    ngram = NgramProposer(settings.drafting)
    drafting = ProposerService([ngram], device=drafting_device, limits=settings.drafting)
    proposers = Proposers(
        fleet=fleet,
        catalog=catalog,
        channels=channels,
        dflash=dflash,
        drafting=drafting,
        facts=lambda: None if slot.ready is None else slot.ready.facts,
    )
    keeper = Keeper(
        open_stub=proposers.stub, limits=settings.decoding, rng=seams.rng("session ids")
    )
    peers = peers_of(proposers, settings, keeper)
    proposers_loaded = trio.Event()
    generations = Generations(
        settings=settings,
        slot=slot,
        peers=peers,
        admission=admission,
        wall=seams.wall,
        note_speed=offers.note_verifier_speed,
        metrics=metrics,
        proposers_loaded=proposers_loaded,
    )
    overview = Overview(
        fleet=fleet,
        slot=slot,
        admission=admission,
        scoreboard=generations.scoreboard,
        sessions=lambda: session_view(dflash.sessions.counts()),
    )
    servicers = (
        fleet.servicer(),
        drafting,
        dflash.service,
        DrafterServicer(lambda: dflash.cards, lambda: drafting.cards),
        NodeServicer(fleet, generations, overview, proposers.prefers),
    )
    services = [servicer.service for servicer in servicers]
    names = [service.name for service in services]
    health = Health(names, max_watchers=settings.rpc.max_health_watchers)
    services += [HealthService(health).service, *reflection_services([*names, HEALTH_SERVICE])]
    return Parts(
        settings=settings,
        seams=seams,
        drafting_device=drafting_device,
        proposing_device=seams.make_device("proposing"),
        verifying_device=seams.make_device("verifying"),
        channels=channels,
        fleet=fleet,
        offers=offers,
        slot=slot,
        admission=admission,
        metrics=metrics,
        peers=peers,
        keeper=keeper,
        catalog=catalog,
        generations=generations,
        overview=overview,
        endpoint=Endpoint(
            services,
            limits=settings.rpc,
            admit=_admit(settings),
            max_message_bytes=_small_messages(settings.rpc),
            budget=budget,
            readers=readers,
        ),
        ngram=ngram,
        drafting=drafting,
        proposers_loaded=proposers_loaded,
        dflash=dflash,
        health=health,
    )


def session_view(counts: SessionCounts) -> SessionView:
    """The sessions as metrics and the page show them."""
    closed = {ending.value: count for ending, count in counts.closed.items()}
    return SessionView(counts.num_sessions, counts.num_bytes, closed)


def _small_messages(limits: RpcLimits) -> dict[str, int]:
    """The limit of each small service; never above the general one."""
    size = min(limits.max_small_message_bytes, limits.max_message_bytes)
    return dict.fromkeys(SMALL_SERVICES, size)


def _demand_sound(settings: Settings) -> None:
    names = [each for each in settings.proposer if each != NGRAM]
    ids = [_proposer_id(each, settings) for each in names]
    twice = [each for each in ids if ids.count(each) > 1]
    demand(not twice, "INVALID_ARGUMENT", f"two proposers go by the name {twice[:1]}")


def _proposer_id(name: str, settings: Settings) -> str:
    by_prefix = resolve_by_prefix(name)
    if by_prefix is not None:
        return by_prefix.model_id
    return resolve_drafter(name, own_verifier=settings.verifier).model_id


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
