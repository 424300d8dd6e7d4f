"""A fleet in one process: the real Fleet objects over links we can cut, on the mock clock.

The RPC layer's bytes are left out; all else of kakeya.fleet runs as it does on a host.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from kakeya.config.fleet import FleetLimits
from kakeya.errors import Refused
from kakeya.fleet.address import kind_of
from kakeya.fleet.calls import CallFailed, View
from kakeya.fleet.card import Model
from kakeya.fleet.discovery import Route
from kakeya.fleet.frames import split
from kakeya.fleet.gossip import Surroundings
from kakeya.fleet.membership import Fleet, FleetSettings, build_fleet
from kakeya.fleet.service import admits, fleet_metadata
from kakeya.fleet.store import MemoryStore
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.fleet.cards import NOW
from tests.sim.determinism import seeded_schedule
from tests.sim.logs import who

NGRAM = Model("ngram", 2, "none", 0.0)


@dataclass(frozen=True)
class SeenCall:
    """What a servicer sees of a call besides the message."""

    service: str
    method: str
    metadata: tuple[tuple[str, str], ...]
    peer_address: str


@dataclass
class Member:
    """One node, as long as it runs."""

    name: str
    fleet: Fleet
    address: str
    scope: trio.CancelScope
    stopped: trio.Event = field(default_factory=trio.Event)
    # The frames of every card it has sent in this life, and in all lives of its id.
    issued: set[bytes] = field(default_factory=set)
    ever_issued: set[bytes] = field(default_factory=set)

    def sends(self, view: bytes) -> None:
        """Note the card a view begins with: a node's own comes first."""
        frames = split(view, max_cards=1).frames
        self.issued.update(frames)
        self.ever_issued.update(frames)


class World:
    """Nodes by name, links between them, and one seed for all chance."""

    def __init__(
        self, nursery: trio.Nursery, *, seed: int, limits: FleetLimits, latency_s: float
    ) -> None:
        self.seed = seed
        self.limits = limits
        self.latency_s = latency_s
        self.jitter_s = 0.0
        self.loss = 0.0
        # The share of requests that are handled a second time, a while later.
        self.repeats = 0.0
        self.offsets_s: dict[str, float] = {}
        self.drifts: dict[str, float] = {}  # seconds a second
        self.slow_s: dict[str, float] = {}  # what a packet to or from a node waits more
        self.nameless: set[str] = set()  # nodes whose resolver fails
        self.stores: dict[str, MemoryStore] = {}
        self.members: dict[str, Member] = {}
        self.at: dict[str, Member] = {}  # by address
        self.cuts: set[tuple[str, str]] = set()
        self.hung: set[str] = set()
        self.dialled: list[tuple[str, str, str]] = []  # from, to, method
        # The frames of every card sent by an owner, in all its lives, by node_id.
        self.issued: dict[str, set[bytes]] = {}
        self._chance = random.Random(f"{seed}/links")
        self._nursery = nursery
        self._boots = 0

    @staticmethod
    @asynccontextmanager
    async def open(
        *,
        seed: int,
        limits: FleetLimits | None = None,
        latency_s: float = 0.02,
        is_silent: bool = False,
    ) -> AsyncIterator[World]:
        if not is_silent:
            print(f"seed {seed}")  # noqa: T201
        with seeded_schedule(seed):
            async with trio.open_nursery() as nursery:
                yield World(nursery, seed=seed, limits=limits or FleetLimits(), latency_s=latency_s)
                nursery.cancel_scope.cancel()

    def wall_of(self, name: str) -> Callable[[], float]:
        def wall() -> float:
            now_s = trio.current_time()
            return NOW + now_s * (1 + self.drifts.get(name, 0.0)) + self.offsets_s.get(name, 0.0)

        return wall

    async def start(
        self,
        name: str,
        *,
        seeds: tuple[str, ...] = (),
        address: str = "",
        bind: str = "",
        node_id: str = "",
        fleet_name: str = "kakeya",
        offset_s: float | None = None,
        models: tuple[Model, ...] = (NGRAM,),
    ) -> Member:
        """Start a node; `seeds` are names of nodes or addresses, `bind` a host to listen on."""
        self._boots += 1
        if offset_s is not None:
            self.offsets_s[name] = offset_s
        store = self.stores.setdefault(name, MemoryStore())
        address = address or f"{name}:50051"
        around = Surroundings(
            calls=Links(self, name, fleet_name),
            route=self._route_of(name),
            store=store,
            wall=self.wall_of(name),
            rng=random.Random(f"{self.seed}/gossip/{name}/{self._boots}"),
        )
        settings = FleetSettings(
            node_id=node_id or name,
            fleet_name=fleet_name,
            seeds=tuple(s if ":" in s else f"{s}:50051" for s in seeds),
            advertise="",
            platform="simulated",
            memory_bytes=16 << 30,
            mlx_version="",
            models=models,
            ttl_is_explicit=True,
        )
        fleet = build_fleet(settings, limits=self.limits, around=around)
        host, _, port = address.rpartition(":")
        fleet.listens_on(bind or host, int(port))
        member = Member(
            name,
            fleet,
            address,
            trio.CancelScope(),
            ever_issued=self.issued.setdefault(fleet.node_id, set()),
        )
        self.members[name] = self.at[address] = member
        self._nursery.start_soon(self._live, member)
        await trio.lowlevel.checkpoint()
        return member

    def _route_of(self, name: str) -> Route:
        """The local end of the route to any host: our own host, but for neighbours on loopback."""

        async def route(to_host: str, port: int) -> str:
            await trio.lowlevel.checkpoint()
            if name in self.nameless:
                return ""
            host = self.members[name].address.rpartition(":")[0]
            if kind_of(to_host) == "loopback":
                return to_host
            return "10.9.9.9" if kind_of(host) == "loopback" else host

        return route

    def move(self, name: str, address: str) -> None:
        """Give a node's machine another address; what is bound to a wildcard follows."""
        member = self.members[name]
        del self.at[member.address]
        member.address = address
        self.at[address] = member

    async def _live(self, member: Member) -> None:
        who.set(member.name)
        with member.scope:
            await member.fleet.run()
        member.stopped.set()

    async def kill(self, name: str) -> None:
        """As kill -9: nothing is said to anybody; the store stays."""
        member = self.members.pop(name)
        self.at.pop(member.address)
        member.scope.cancel()
        await member.stopped.wait()

    def fleet(self, name: str) -> Fleet:
        return self.members[name].fleet

    def cut(self, *names: str) -> None:
        """Let nothing pass between these nodes and all others."""
        others = {m for m in self.stores if m not in names}
        self.cuts |= {(a, b) for a in names for b in others}
        self.cuts |= {(b, a) for a in names for b in others}

    def heal(self) -> None:
        self.cuts.clear()
        self.hung.clear()
        self.slow_s.clear()
        self.nameless.clear()

    def sees(self, name: str) -> dict[str, str]:
        """The addresses of the nodes in a node's snapshot, by node_id."""
        return {c.node_id: c.offer.grpc_address for c in self.fleet(name).snapshot()}

    def is_whole(self, *names: str) -> bool:
        """Whether all of these nodes see just these, at their true addresses."""
        truth = {self.fleet(n).node_id: self.members[n].address for n in names}
        return all(self.sees(name) == truth for name in names)

    def is_current(self, *names: str) -> bool:
        """Whether all cards that these nodes hold of one another are of their present lives.

        A card of an earlier life at the same address looks the same, but lapses before long.
        """
        owners = {self.fleet(n).node_id: self.members[n] for n in names}
        return all(
            card.frame in owners[card.node_id].issued
            for name in names
            for card in self.fleet(name).snapshot()[1:]
            if card.node_id in owners
        )

    async def time_until(
        self, holds: Callable[[], bool], *, limit_s: float, every_s: float = 0.1
    ) -> float:
        """Seconds until `holds`, looked at each `every_s`; fails at the limit."""
        start_s = trio.current_time()
        while not holds():
            assert trio.current_time() - start_s < limit_s, f"not within {limit_s} s"
            await trio.sleep(every_s)
        return trio.current_time() - start_s

    async def push_raw(self, name: str, view: bytes, fleet_name: str = "kakeya") -> bytes:
        """Exchange as a peer we did not write; raises CallFailed."""
        stranger = Links(self, "stranger", fleet_name)
        return await stranger.exchange(self.members[name].address, view)

    async def carry(self, caller: str, address: str) -> Member:
        """Take a call's bytes one way; hangs where a packet would be lost."""
        member = self.at.get(address)
        await trio.sleep(self._delay_s(caller, member.name if member else ""))
        member = self.at.get(address)
        if member is None:
            raise CallFailed("UNAVAILABLE", "connection refused")
        lost = self._chance.random() < self.loss
        if lost or address in self.hung or (caller, member.name) in self.cuts:
            await trio.sleep_forever()
        return member

    def _delay_s(self, *names: str) -> float:
        jitter_s = self.jitter_s * self._chance.random() if self.jitter_s else 0.0
        return self.latency_s + jitter_s + sum(self.slow_s.get(name, 0.0) for name in names)

    def repeat(self, handle: Callable[[], Awaitable[object]]) -> None:
        """Now and then let a request be handled once more, as after a lost reply."""
        if self.repeats and self._chance.random() < self.repeats:
            self._nursery.start_soon(self._again, handle, self._chance.uniform(0.1, 3.0))

    async def _again(self, handle: Callable[[], Awaitable[object]], after_s: float) -> None:
        await trio.sleep(after_s)
        with suppress(Refused):
            await handle()

    async def carry_back(self, caller: str, member: Member) -> None:
        await trio.sleep(self._delay_s(caller, member.name))
        lost = self._chance.random() < self.loss
        if lost or (member.name, caller) in self.cuts:
            await trio.sleep_forever()
        if member.stopped.is_set():
            raise CallFailed("UNAVAILABLE", "connection reset")


@dataclass(frozen=True)
class Links:
    """PeerCalls of one node."""

    world: World
    caller: str
    fleet_name: str

    async def exchange(self, grpc_address: str, view: bytes) -> bytes:
        return await self._call(grpc_address, "ExchangeCapabilities", View(view))

    async def probe(self, grpc_address: str) -> bytes:
        return await self._call(grpc_address, "GetNodeCapability", pb.GetNodeCapabilityRequest())

    def drop_connections(self) -> None:
        """There are none: a link is made for each call."""

    async def _call(self, address: str, method: str, message: object) -> bytes:
        self.world.dialled.append((self.caller, address, method))
        caller = self.world.members.get(self.caller)
        if caller is not None and isinstance(message, View):
            caller.sends(message.content)
        member = await self.world.carry(self.caller, address)
        call = SeenCall(
            "kakeya.v1.CapabilityService",
            method,
            fleet_metadata(self.fleet_name),
            caller.address if caller else "stranger:1",
        )
        try:
            admits(member.fleet.fleet_name)(call)
            handler = getattr(member.fleet.servicer(), method)
            self.world.repeat(partial(handler, message, call))
            answer = await handler(message, call)
        except Refused as refused:
            raise CallFailed(refused.status, refused.why) from None
        member.sends(answer.content)
        await self.world.carry_back(self.caller, member)
        return answer.content


def quick(interval_s: float, ttl_s: float) -> FleetLimits:
    return replace(FleetLimits(), interval_s=interval_s, ttl_s=ttl_s)
