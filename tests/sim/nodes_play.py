"""Whole nodes as a plan's faults find them."""

from __future__ import annotations

from contextlib import suppress

import trio

from kakeya.config.sessions import SessionLimits
from kakeya.config.settings import Settings
from kakeya.fleet.calls import CallFailed
from kakeya.fleet.channel_calls import ChannelCalls
from kakeya.fleet.frames import split
from kakeya.fleet.membership import Fleet
from tests.sim.fleet_play import limits_of
from tests.sim.generations import PROMPTS, Asked, Generation, generate, truth_of
from tests.sim.nodes import DESK, NodeWorld
from tests.sim.oracle import demand
from tests.sim.plan import Plan, Text
from tests.sim.quiet import demand_deadlines, demand_nothing_left
from tests.sim.rogue import MANNERS, ROGUE, Rogue, host_rogue
from tests.sim.seams import Disk

# How long a text may take before its reader gives up, in the storm.
PATIENCE_S = 20.0


def settings_of(plan: Plan) -> Settings:
    """Sessions that nobody asks for any more end soon, so that a run need not wait for them."""
    sessions = SessionLimits(opened_s=5.0, restored_s=5.0, seeded_s=8.0, drafting_s=8.0)
    return Settings(fleet=limits_of(plan), sessions=sessions)


class NodesPlay:
    """See faults.Play; and what can happen to processes, devices and connections."""

    def __init__(self, world: NodeWorld, plan: Plan, nursery: trio.Nursery) -> None:
        self.world = world
        self.plan = plan
        self.forged: set[bytes] = set()
        self.generations: list[Generation] = []
        # Nodes whose device failed at some time: their texts may end in INTERNAL.
        self.broken_devices: set[str] = set()
        self.rogue: Rogue | None = None
        self._rogue_scope = trio.CancelScope()
        self._nursery = nursery

    # ---- what the oracle asks

    def runs(self, name: str) -> bool:
        return name in self.world.nodes

    def fleets(self) -> dict[str, Fleet]:
        return {name: self.world.fleet(name) for name in self.plan.names if self.runs(name)}

    def wall(self, name: str) -> float:
        return self.world.clock(name)()

    def address(self, name: str) -> str:
        running = self.world.nodes[name].running
        assert running is not None
        return running.grpc_address

    def look(self) -> None:
        """S11, S12, and nothing failed on a mistake of ours."""
        mistakes = self.world.trace.mistakes
        demand(not mistakes, "S13", f"a task failed on our own mistake: {mistakes[:1]}")
        demand(not self.world.errors, "S9", f"nodes ended by themselves: {self.world.errors}")
        for node in self.world.nodes.values():
            demand_deadlines(node)
        self.world.contexts.demand_true()

    def is_current(self, *names: str) -> bool:
        return self.world.is_current(*names)

    def was_issued(self, node_id: str, frame: bytes) -> bool:
        is_guest = node_id in (ROGUE,)
        return is_guest or frame in self.world.issued.get(node_id, ()) or frame in self.forged

    # ---- processes

    async def start(self, name: str, *, port: int, wipes: bool) -> None:
        for other in list(self.world.nodes.values()):
            if other.machine == name:
                await self.world.kill(other.name)
        if wipes:
            life = self.world.disks[name].life if name in self.world.disks else 0
            self.world.disks[name] = Disk(life=life)
        await self.world.start(
            name,
            seeds=self.plan.seeds,
            port=port,
            verifier="sim" if name in self.plan.verifiers else "none",
            drafts=name not in self.plan.verifiers[:1],
        )

    async def kill(self, name: str) -> None:
        await self.world.kill(name)

    async def vanish(self, name: str) -> None:
        await self.world.kill(name, says_so=False)

    async def leave(self, name: str) -> None:
        node = self.world.nodes[name]
        await self.world.stop(name)
        demand_nothing_left(self.world, node)

    async def kill_leaving(self, name: str, after_s: float) -> None:
        node = self.world.nodes[name]
        assert node.running is not None
        node.running.stop(interrupted=False)
        with trio.move_on_after(after_s):
            await node.stopped.wait()
        if self.world.nodes.get(name) is node:
            await self.world.kill(name)

    def kill_within(self, name: str, method: str) -> None:
        """Kill a node a moment after a call of that method reaches it."""
        node = self.world.nodes[name]

        async def soon() -> None:
            await trio.sleep(0.001)
            if self.world.nodes.get(name) is node:
                await self.world.kill(name)

        self.world.network.watches.append(
            (f"/{method}".encode(), name, lambda: self._nursery.start_soon(soon))
        )

    async def twin(self, name: str) -> bool:
        if self.runs("twin"):
            return False
        await self.world.start("twin", node_id=name, seeds=self.plan.seeds)
        return True

    async def alien(self, name: str) -> bool:
        if self.runs("alien") or any(n.machine == name for n in self.world.nodes.values()):
            return False
        self.world.network.machine(name)
        await self.world.start("alien", machine=name, fleet_name="other", seeds=self.plan.seeds)
        return True

    async def start_rogue(self, manner: int) -> bool:
        """A proposer of bad manners; there is one at most."""
        if self.rogue is not None:
            self.rogue.manner = MANNERS[manner]
            return True
        self.rogue = Rogue(MANNERS[manner])
        self._rogue_scope = trio.CancelScope()
        await self._nursery.start(self._live_rogue)
        return True

    async def _live_rogue(self, task_status: trio.TaskStatus[None]) -> None:
        assert self.rogue is not None
        with self._rogue_scope:
            await host_rogue(self.world, self.rogue, self.plan.seeds, task_status)
        self.rogue = None

    async def end_guests(self) -> None:
        for name in ("twin", "alien"):
            if self.runs(name):
                await self.world.kill(name)
        self._rogue_scope.cancel()
        self.world.network.watches.clear()
        self.world.network.breaks.clear()
        for name in self.fleets():
            self.strain(name, "verifying", 1.0)
            self.strain(name, "drafting", 1.0)
            self.strain(name, "dflash", 1.0)

    # ---- links

    def cut(self, a: str, b: str, *, one_way: bool) -> None:
        self.world.network.cut(a, b, one_way=one_way)

    def isolate(self, *names: str) -> None:
        for name in names:
            for other in self.world.network.machines:
                if other not in names and other != DESK:
                    self.world.network.cut(name, other)

    def heal(self) -> None:
        self.world.network.heal()

    def freeze(self, name: str) -> None:
        self.world.network.machine(name).is_frozen = True
        self.world.network.change()

    def slow(self, name: str, slow_s: float) -> None:
        self.world.network.machine(name).slow_s = slow_s

    def lose(self, share: float) -> None:
        self.world.network.weather.loss = share

    def lose_names(self, name: str) -> None:
        self.world.network.machine(name).knows_no_names = True

    def break_off(self, a: str, b: str, num_bytes: int) -> None:
        """End the connection from a to b in the middle of what it carries."""
        self.world.network.breaks[a, b] = num_bytes

    # ---- clocks, disks, devices

    def step_clock(self, name: str, offset_s: float) -> None:
        clock = self.world.clock(name)
        clock.offset_s, clock.drift = offset_s, 0.0

    def drift_clock(self, name: str, drift: float) -> None:
        clock, now_s = self.world.clock(name), trio.current_time()
        clock.offset_s += now_s * (clock.drift - drift)
        clock.drift = drift

    def fill_disk(self, name: str) -> None:
        if name in self.world.disks:
            self.world.disks[name].is_full = True

    def empty_disks(self) -> None:
        for disk in self.world.disks.values():
            disk.is_full = False

    def strain(self, name: str, device: str, factor: float) -> None:
        """Let a device's jobs take so many times as long; 0: they fail."""
        chosen = self.world.nodes[name].devices[device]
        chosen.fails = factor == 0
        chosen.slowness = factor or 1.0
        if chosen.fails:
            self.broken_devices.add(name)

    def is_settled(self, name: str) -> bool:
        """Whether a node is through with what it does at its start."""
        running = self.world.nodes[name].running
        assert running is not None
        models = running.parts.fleet.own_card().offer.models
        wanted = 1 + (name in self.plan.verifiers) + (name not in self.plan.verifiers[:1])
        return len(models) == wanted and all(m.tokens_per_second > 0 for m in models)

    # ---- cards and texts

    async def push(self, name: str, view: bytes, *, may_be_held: bool) -> None:
        if may_be_held:
            self.forged.update(split(view, max_cards=10_000).frames)
        with trio.move_on_after(2), suppress(CallFailed):
            await ChannelCalls(self.world.channels).exchange(self.address(name), view)

    async def text(self, text: Text) -> Generation:
        """Ask for a text where the node is now; it may be cancelled."""
        asked = Asked(
            PROMPTS[text.prompt % len(PROMPTS)],
            text.max_tokens,
            text.draft_on,
            text.num_drafts,
            exact=text.exact,
            window=text.window,
            temperature=text.temperature,
            proposer=text.proposer,
            restored=text.restored,
        )
        generation = Generation(text.on, asked)
        self.world.contexts.expect(truth_of(asked).rows)
        self.generations.append(generation)
        address = self.address(text.on) if self.runs(text.on) else f"{text.on}:50051"
        with trio.move_on_after(text.cancel_after_s):
            await generate(self.world.channels, address, generation, limit_s=PATIENCE_S)
        self.world.trace.note(
            "text", text.on, generation.status, len(generation.ids), generation.num_accepted
        )
        return generation
