"""The fleet without the RPC layer's bytes, as a plan's faults find it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import trio

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.calls import CallFailed
from kakeya.fleet.frames import split
from kakeya.fleet.membership import Fleet
from kakeya.fleet.store import MemoryStore, Saved
from tests.fleet.world import Links, World, quick
from tests.sim.oracle import demand
from tests.sim.plan import Plan
from tests.sim.trace import Trace


def limits_of(plan: Plan) -> FleetLimits:
    """The plan's pace, and so little room that a flood of cards fills it."""
    room = max(48, 2 * len(plan.names))
    return replace(quick(plan.interval_s, plan.ttl_s), max_cards=room)


class Disk(MemoryStore):
    """A store that may be full."""

    is_full = False

    async def save(self, saved: Saved) -> None:
        if self.is_full:
            await trio.lowlevel.checkpoint()
            raise OSError(28, "No space left on device")
        await super().save(saved)


class FleetPlay:
    """See faults.Play."""

    def __init__(self, world: World, plan: Plan, trace: Trace) -> None:
        self.trace = trace
        world.jitter_s = 0.03
        world.repeats = 0.05
        self.world = world
        self.plan = plan
        # Frames that no owner sent, but that may be held.
        self.forged: set[bytes] = set()

    def runs(self, name: str) -> bool:
        return name in self.world.members

    def fleets(self) -> dict[str, Fleet]:
        return {name: self.world.fleet(name) for name in self.plan.names if self.runs(name)}

    def wall(self, name: str) -> float:
        return self.world.wall_of(name)()

    def look(self) -> None:
        """There is nothing but the fleet here, and the oracle looks at that."""
        mistakes = self.trace.mistakes
        demand(not mistakes, "S13", f"a task failed on our own mistake: {mistakes[:1]}")

    def address(self, name: str) -> str:
        return self.world.members[name].address

    def is_current(self, *names: str) -> bool:
        return self.world.is_current(*names)

    def was_issued(self, node_id: str, frame: bytes) -> bool:
        return frame in self.world.issued.get(node_id, ()) or frame in self.forged

    async def start(self, name: str, *, port: int, wipes: bool) -> None:
        address = f"{name}:{port}"
        tenant = self.world.at.get(address)
        if tenant is not None:
            await self.world.kill(tenant.name)
        if wipes or name not in self.world.stores:
            self.world.stores[name] = Disk()
        await self.world.start(name, seeds=self.plan.seeds, address=address)

    async def kill(self, name: str) -> None:
        await self.world.kill(name)

    async def leave(self, name: str) -> None:
        await self.world.fleet(name).leave()
        await self.world.kill(name)

    async def kill_leaving(self, name: str, after_s: float) -> None:
        with trio.move_on_after(after_s):
            await self.world.fleet(name).leave()
        await self.world.kill(name)

    async def push(self, name: str, view: bytes, *, may_be_held: bool) -> None:
        if may_be_held:
            self.forged.update(split(view, max_cards=10_000).frames)
        with trio.move_on_after(2), suppress(CallFailed):  # the link may be cut
            stranger = Links(self.world, "stranger", "kakeya")
            await stranger.exchange(self.address(name), view)

    async def twin(self, name: str) -> bool:
        if self.runs("twin"):
            return False
        await self.world.start("twin", node_id=name, seeds=self.plan.seeds)
        return True

    async def alien(self, name: str) -> bool:
        address = f"{name}:50051"
        if self.runs("alien") or address in self.world.at:
            return False
        await self.world.start("alien", fleet_name="other", address=address, seeds=self.plan.seeds)
        return True

    async def end_guests(self) -> None:
        for name in ("twin", "alien"):
            if self.runs(name):
                await self.world.kill(name)

    def cut(self, a: str, b: str, *, one_way: bool) -> None:
        self.world.cuts.add((a, b))
        if not one_way:
            self.world.cuts.add((b, a))

    def isolate(self, *names: str) -> None:
        self.world.cut(*names)

    def heal(self) -> None:
        self.world.heal()
        self.world.loss = 0.0

    def freeze(self, name: str) -> None:
        if self.runs(name):
            self.world.hung.add(self.address(name))

    def slow(self, name: str, slow_s: float) -> None:
        self.world.slow_s[name] = slow_s

    def lose(self, share: float) -> None:
        self.world.loss = share

    def step_clock(self, name: str, offset_s: float) -> None:
        self.world.offsets_s[name] = offset_s
        self.world.drifts[name] = 0.0

    def drift_clock(self, name: str, drift: float) -> None:
        # From now on: what passed before ran at the old pace.
        before_s = trio.current_time() * self.world.drifts.get(name, 0.0)
        offset_s = self.world.offsets_s.get(name, 0.0) + before_s - trio.current_time() * drift
        self.world.offsets_s[name] = offset_s
        self.world.drifts[name] = drift

    def lose_names(self, name: str) -> None:
        self.world.nameless.add(name)

    def fill_disk(self, name: str) -> None:
        store = self.world.stores.get(name)
        if isinstance(store, Disk):
            store.is_full = True

    def empty_disks(self) -> None:
        for store in self.world.stores.values():
            if isinstance(store, Disk):
                store.is_full = False
