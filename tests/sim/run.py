"""Runs one plan and says what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from tests.fleet.world import World
from tests.sim.calm import calm, mend
from tests.sim.determinism import simulate
from tests.sim.faults import kinds_of
from tests.sim.fleet_play import Disk, FleetPlay, limits_of
from tests.sim.last import demand_ended_well, last_texts, stop_all
from tests.sim.logs import recorded
from tests.sim.nodes import NodeWorld
from tests.sim.nodes_play import NodesPlay, settings_of
from tests.sim.oracle import Oracle
from tests.sim.plan import Fault, Plan, Text
from tests.sim.trace import Trace
from tests.sim.violation import Violation, first_of


@dataclass(frozen=True)
class Outcome:
    """What a run showed.  rule "" when all held; coverage: how often each fault struck."""

    rule: str
    why: str
    sha256: str
    coverage: Mapping[str, int]
    # Where the run ended, by its own clock.
    virtual_s: float
    tail: tuple[str, ...]

    @property
    def held(self) -> bool:
        return not self.rule


SETS_A_CLOCK = ("step", "leap")


class Running:
    """What a run leaves behind even when it fails."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.coverage: Counter[str] = Counter()
        self.virtual_s = 0.0


def run_plan(plan: Plan) -> Outcome:
    """Run it, on a clock and a schedule of its own; never raises for what the plan does."""
    running = Running()
    act = run_fleet if plan.level == "fleet" else run_nodes
    rule, why = "", ""
    try:
        simulate(act, plan, running, seed=plan.seed)
    except Exception as error:
        rule, why = verdict(error)
        running.virtual_s = running.trace.last_s
    return Outcome(
        rule,
        why,
        running.trace.sha256,
        running.coverage,
        running.virtual_s,
        tuple(running.trace.lines),
    )


def verdict(error: Exception) -> tuple[str, str]:
    """The rule that was broken and how; anything else that was raised counts as a crash."""
    first = first_of(error)
    if isinstance(first, Violation):
        return first.rule, first.what
    return "crash", f"{type(first).__name__}: {first}"


async def run_fleet(plan: Plan, running: Running) -> None:
    with recorded(running.trace):
        async with World.open(seed=plan.seed, limits=limits_of(plan), is_silent=True) as world:
            play = FleetPlay(world, plan, running.trace)
            oracle = Oracle(play)
            for name in plan.names:
                world.stores[name] = Disk()
                await play.start(name, port=50051, wipes=False)
            await storm(play, oracle, running)
            await calm(play, oracle)
            play.look()
            running.virtual_s = trio.current_time()


async def run_nodes(plan: Plan, running: Running) -> None:
    async with (
        NodeWorld.open(
            seed=plan.seed, settings=settings_of(plan), trace=running.trace, is_silent=True
        ) as world,
        trio.open_nursery() as nursery,
    ):
        world.blur = plan.blur
        play = NodesPlay(world, plan, nursery)
        oracle = Oracle(play)
        for name in plan.names:
            await play.start(name, port=50051, wipes=False)
        async with trio.open_nursery() as readers:
            for text in plan.texts:
                readers.start_soon(read_at, play, text)
            await storm(play, oracle, running)
            await mend(play, oracle)
        demand_ended_well(play)
        running.coverage["text given up"] += sum(
            each.status == "CANCELLED" for each in play.generations
        )
        await calm(play, oracle)
        await last_texts(play)
        await stop_all(play)
        running.virtual_s = trio.current_time()


async def read_at(play: NodesPlay, text: Text) -> None:
    await trio.sleep_until(text.at_s)
    await play.text(text)


async def storm(play: Any, oracle: Oracle, running: Running) -> None:
    """Every fault at its time, the oracle looking on."""
    for fault in play.plan.faults:
        await trio.sleep_until(fault.at_s)
        if fault.kind in SETS_A_CLOCK:
            # What a step back makes incredible is forgotten, also what came since the last look.
            oracle.look()
        await strike(play, fault, running)
        oracle.look()
        play.look()
    await trio.sleep_until(play.plan.storm_s)
    oracle.look()


async def strike(play: Any, fault: Fault, running: Running) -> None:
    running.trace.note("fault", fault.kind, fault.on, fault.to, fault.value)
    if await kinds_of(play.plan.level)[fault.kind].strike(play, fault):
        running.coverage[fault.kind] += 1
