"""Whole nodes in one process: the same composition as on a host, over byte streams in memory.

Everything runs but sockets and threads: HTTP/2, gRPC, gossip, drafting, decoding, drain.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from kakeya.config.rpc import RpcLimits
from kakeya.config.settings import Settings
from kakeya.fleet.card import Card
from kakeya.fleet.membership import Fleet
from kakeya.fleet.service import fleet_metadata
from kakeya.node.run import RunningNode, run_node
from kakeya.rpc.channel import Channels
from tests.fleet.world import quick
from tests.sim.contexts import Contexts
from tests.sim.determinism import seeded_schedule
from tests.sim.drafter import PROPOSER
from tests.sim.logs import recorded, who
from tests.sim.network import MemoryDialer, Network
from tests.sim.seams import Clock, Disk, SimDevice, sim_seams
from tests.sim.trace import Trace
from tests.sim.violation import first_of

PORT = 50051
# The machine that people sit at: it runs no node.
DESK = "desk"


@dataclass(eq=False)
class SimNode:
    """One life of a node."""

    name: str
    life: int
    scope: trio.CancelScope
    devices: dict[str, SimDevice]
    running: RunningNode | None = None
    stopped: trio.Event = field(default_factory=trio.Event)
    # The machine it runs on.
    machine: str = ""
    # What ended it, when it was neither told to stop nor killed.
    error: BaseException | None = None
    # Connections it still had when it said it had stopped.
    num_left_open: int = 0
    # The frames of every card it issued in this life.
    issued: set[bytes] = field(default_factory=set)

    @property
    def fleet(self) -> Fleet:
        assert self.running is not None
        return self.running.parts.fleet


class NodeWorld:
    """Machines, the nodes that run on them, and one seed for all chance."""

    def __init__(
        self, nursery: trio.Nursery, *, seed: int, settings: Settings, trace: Trace
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.trace = trace
        # How nodes ended that were neither told to stop nor killed.
        self.errors: list[str] = []
        self.network = Network(rng=random.Random(f"{seed}/network"), trace=self.trace)
        self.clocks: dict[str, Clock] = {}
        self.disks: dict[str, Disk] = {}
        self.nodes: dict[str, SimNode] = {}
        self.blur = 0.0
        # What sessions draft from, all over the world.
        self.contexts = Contexts()
        # The frames of every card that an owner issued, in all its lives, by node_id.
        self.issued: dict[str, set[bytes]] = {}
        self._nursery = nursery
        self._boots = 0
        self.network.machine(DESK)
        self.channels = Channels(
            dialer=MemoryDialer(self.network, DESK),
            limits=RpcLimits(),
            rng=random.Random(f"{seed}/channels/{DESK}"),
            metadata=fleet_metadata(settings.fleet_name),
        )

    @staticmethod
    @asynccontextmanager
    async def open(
        *,
        seed: int,
        settings: Settings | None = None,
        trace: Trace | None = None,
        is_silent: bool = False,
    ) -> AsyncIterator[NodeWorld]:
        if not is_silent:
            print(f"seed {seed}")  # noqa: T201
        trace = trace or Trace()
        with seeded_schedule(seed), recorded(trace):
            async with trio.open_nursery() as nursery:
                world = NodeWorld(
                    nursery, seed=seed, settings=settings or quick_settings(), trace=trace
                )
                await nursery.start(world.channels.serve)
                yield world
                nursery.cancel_scope.cancel()

    # ---- machines

    def clock(self, name: str) -> Clock:
        return self.clocks.setdefault(name, Clock())

    def address(self, name: str, port: int = PORT) -> str:
        return f"{min(self.network.machine(name).hosts)}:{port}"

    # ---- nodes

    async def start(
        self,
        name: str,
        *,
        seeds: tuple[str, ...] = (),
        port: int = PORT,
        machine: str = "",
        verifier: str = "none",
        drafts: bool = False,
        **settings: object,
    ) -> SimNode:
        """Start a node and wait until it listens.

        `seeds` are names or addresses; `machine` is its own, of its name, unless another is given;
        `drafts`: it serves DFlash sessions beside the n-gram.
        """
        self._boots += 1
        machine = machine or name
        disk = self.disks.setdefault(name, Disk())
        disk.life += 1
        node = SimNode(name, self._boots, trio.CancelScope(), {}, machine=machine)
        seams = sim_seams(
            self.network,
            name,
            machine=machine,
            seed=self.seed,
            boot=self._boots,
            clock=self.clock(name),
            disk=disk,
            devices=node.devices,
            blur=self.blur,
            hears=self.contexts.hear,
        )
        mine = replace(
            self.settings,
            **{
                "host": min(self.network.machine(machine).hosts),
                "port": port,
                "node_id": name,
                "verifier": verifier,
                "proposer": ("ngram", PROPOSER) if drafts else ("ngram",),
                "peer": tuple(s if ":" in s else f"{s}:{PORT}" for s in seeds),
                **settings,
            },
        )
        self.nodes[name] = node
        self.trace.note("start", name, port)
        await self._nursery.start(self._live, node, mine, seams)
        self._listen_to(node)
        return node

    def _listen_to(self, node: SimNode) -> None:
        """Note every card that the node issues from now on, and the one it has."""
        own = node.fleet._own
        ever = self.issued.setdefault(node.fleet.node_id, set())
        issue = own.issue

        def noted(now_unix: float) -> Card:
            card = issue(now_unix)
            node.issued.add(card.frame)
            ever.add(card.frame)
            return card

        own.issue = noted  # type: ignore[method-assign]
        assert own._card is not None
        node.issued.add(own._card.frame)
        ever.add(own._card.frame)

    async def _live(
        self, node: SimNode, settings: Settings, seams: object, task_status: trio.TaskStatus
    ) -> None:
        who.set(node.name)
        try:
            with node.scope:
                async with trio.open_nursery() as nursery:
                    node.running = await nursery.start(run_node, settings, seams)
                    task_status.started()
                node.num_left_open = self.network.machine(node.machine).num_streams
        except Exception as error:
            node.error = error
            self.errors.append(f"{node.name}: {first_of(error)!r}")
            self.trace.note("ended by an error", self.errors[-1])
            if node.running is None:
                raise
        finally:
            node.stopped.set()
            if self.nodes.get(node.name) is node:
                del self.nodes[node.name]
            self.network.down(node.machine)

    async def kill(self, name: str, *, says_so: bool = True) -> None:
        """As kill -9, or (not `says_so`) as power that fails: the disk stays as it was."""
        node = self.nodes.pop(name)
        self.trace.note("kill", name)
        self.disks[name].life += 1
        self.network.down(node.machine, says_so=says_so)
        node.scope.cancel()
        await node.stopped.wait()

    async def stop(self, name: str, *, limit_s: float = 30.0) -> None:
        """As SIGTERM: it drains and ends."""
        node = self.nodes.pop(name)
        assert node.running is not None
        self.trace.note("stop", name)
        node.running.stop(interrupted=False)
        with trio.fail_after(limit_s):
            await node.stopped.wait()

    def is_current(self, *names: str) -> bool:
        """Whether all cards that these nodes hold of one another are of their present lives."""
        return all(
            card.frame in self.nodes[card.node_id].issued
            for name in names
            for card in self.fleet(name).snapshot()[1:]
            if card.node_id in names
        )

    def fleet(self, name: str) -> Fleet:
        return self.nodes[name].fleet

    def sees(self, name: str) -> dict[str, str]:
        """The addresses of the nodes in a node's snapshot, by node_id."""
        return {c.node_id: c.offer.grpc_address for c in self.fleet(name).snapshot()}

    def is_whole(self, *names: str) -> bool:
        """Whether all of these nodes see just these, at their true addresses."""
        truth = {}
        for name in names:
            running = self.nodes[name].running
            assert running is not None
            truth[running.node_id] = running.grpc_address
        return all(self.sees(name) == truth for name in names)

    async def time_until(self, holds: Callable[[], bool], *, limit_s: float) -> float:
        """Seconds until `holds`, looked at each tenth; fails at the limit."""
        start_s = trio.current_time()
        while not holds():
            assert trio.current_time() - start_s < limit_s, f"not within {limit_s} s"
            await trio.sleep(0.1)
        return trio.current_time() - start_s


def quick_settings(*, interval_s: float = 1.0, ttl_s: float = 12.0) -> Settings:
    """The defaults, with a gossip that does not take minutes."""
    return Settings(fleet=quick(interval_s, ttl_s), log_level="debug")
