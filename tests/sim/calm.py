"""After the storm: everything is mended, and then all must agree within a bound and stay so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import trio

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.peers import stretch
from tests.sim.oracle import Oracle, demand
from tests.sim.plan import Plan

# Clocks of the calm are within so much of the true one.
SKEW_S = 1.0
# How often is looked, in intervals.
LOOK_RATIO = 0.25
EXCHANGE_S = 2.0


def bound_s(plan: Plan) -> float:
    """L1: 2·log2(N) + 6 intervals, and what the storm leaves behind.

    Calls under way run out first, stamps may lie as far ahead as clocks did, and the last card of
    a node that left, or one that was forged, is outbid only by the next tick.
    """
    num_nodes = len(plan.names)
    base_s = (2 * math.log2(max(2, num_nodes)) + 6) * interval_s(plan)
    return base_s + EXCHANGE_S + 3.0 + legacy_s(plan)


def interval_s(plan: Plan) -> float:
    """From tick to tick, as fleets of this size stretch it."""
    return plan.interval_s * stretch(len(plan.names), FleetLimits())


def ttl_s(plan: Plan) -> float:
    """A card's lifetime, stretched as the interval is."""
    return 12 * interval_s(plan)


def legacy_s(plan: Plan) -> float:
    """What some faults may still cost after they are over.

    A rogue ends without a word.  A clock that leapt ahead leaves stamps that a slower one does not
    believe before it gets there; a second node with one's id is outbid once a lifetime (F-09).
    """
    kinds = {fault.kind for fault in plan.faults}
    return max(
        2 * ttl_s(plan) if kinds & {"twin"} else 0.0,
        ttl_s(plan) + 2 * SKEW_S if kinds & {"rogue"} else 0.0,
        30.0 + 2 * SKEW_S if kinds & {"leap", "forge"} else 0.0,
    )


def slack_s(plan: Plan) -> float:
    """Clocks apart, the time between two looks, and what the storm left."""
    return 2 * SKEW_S + LOOK_RATIO * plan.interval_s + legacy_s(plan)


async def mend(play: Any, oracle: Oracle) -> None:
    """Heal the links, set the clocks about right, send the guests home, start who is down."""
    plan: Plan = play.plan
    rng = random.Random(f"{plan.seed}/calm")
    play.heal()
    play.empty_disks()
    oracle.look()
    for name in plan.names:
        play.step_clock(name, rng.uniform(-SKEW_S, SKEW_S))
    oracle.look()  # what a step back makes incredible is incredible from now on
    await play.end_guests()
    # The bound on agreement needs somebody at one of the addresses that all were given: else only
    # remembered addresses bring nodes together, some day.
    at_home = [play.runs(s) and play.address(s) == f"{s}:50051" for s in plan.seeds]
    if not any(at_home):
        if play.runs(plan.seeds[0]):
            await play.kill(plan.seeds[0])
        await play.start(plan.seeds[0], port=50051, wipes=False)
    for name in plan.names:
        if not play.runs(name):
            await play.start(name, port=50051, wipes=False)


async def until(
    play: Any, oracle: Oracle, holds: Callable[[], bool], *, limit_s: float, rule: str, what: str
) -> float:
    """Seconds until `holds`, with the oracle looking on; the violation of `rule` at the limit."""
    start_s = trio.current_time()
    while not holds():
        spent_s = trio.current_time() - start_s
        if spent_s >= limit_s:
            views = {name: sorted(play.world.sees(name)) for name in play.fleets()}
            demand(False, rule, f"{what} not within {limit_s:.1f} s; seen are {views}")
        await trio.sleep(LOOK_RATIO * play.plan.interval_s)
        oracle.look()
    return trio.current_time() - start_s


async def stays(play: Any, oracle: Oracle, holds: Callable[[], bool], *, for_s: float, rule: str,
                what: str) -> None:  # fmt: skip
    """`holds` all the while."""
    end_s = trio.current_time() + for_s
    while trio.current_time() < end_s:
        await trio.sleep(play.plan.interval_s)
        oracle.look()
        if not holds():
            views = {name: sorted(play.world.sees(name)) for name in play.fleets()}
            demand(False, rule, f"{what}; seen are {views}")


async def calm(play: Any, oracle: Oracle) -> None:
    """L1, L5 and the plan's ending."""
    plan: Plan = play.plan
    await mend(play, oracle)
    agrees = agreement(play, plan.names)
    await until(play, oracle, agrees, limit_s=bound_s(plan), rule="L1", what="agreement")
    if plan.ending == "loss":
        play.lose(0.1)
    await stays(
        play, oracle, agrees, for_s=ttl_s(plan) + 2, rule="L5", what="a live node's card was lost"
    )
    await ENDINGS[plan.ending](play, oracle)


def agreement(play: Any, names: tuple[str, ...]) -> Callable[[], bool]:
    # A card of an earlier life at the same address looks right but may lapse at once, a moment
    # before the card of the present life comes: that is no agreement yet.
    return lambda: play.world.is_whole(*names) and play.is_current(*names)


async def nothing(play: Any, oracle: Oracle) -> None:
    """No ending."""


async def death(play: Any, oracle: Oracle) -> None:
    """L2: a dead node is gone everywhere by ttl + 2·skew + 1 interval, and comes back nowhere."""
    *rest, last = play.plan.names
    await play.kill(last)
    is_gone = agreement(play, tuple(rest))
    plan: Plan = play.plan
    limit_s = (
        ttl_s(plan) + 2 * SKEW_S + interval_s(plan) + LOOK_RATIO * plan.interval_s + legacy_s(plan)
    )
    await until(play, oracle, is_gone, limit_s=limit_s, rule="L2", what=f"{last}'s end")
    await stays(
        play,
        oracle,
        is_gone,
        for_s=5 * plan.interval_s,
        rule="L2",
        what=f"{last} came back from the dead",
    )


async def leave(play: Any, oracle: Oracle) -> None:
    """L4: a node that left is gone within its lifetime (two intervals) + skew + 1 interval."""
    *rest, last = play.plan.names
    await play.leave(last)
    is_gone = agreement(play, tuple(rest))
    plan: Plan = play.plan
    # Its lifetime is two intervals; by now all its peers have heard of it.
    limit_s = (
        2 * plan.interval_s
        + interval_s(plan)
        + 2 * SKEW_S
        + LOOK_RATIO * plan.interval_s
        + legacy_s(plan)
    )
    await until(play, oracle, is_gone, limit_s=limit_s, rule="L4", what=f"{last}'s leave")
    await stays(
        play,
        oracle,
        is_gone,
        for_s=5 * plan.interval_s,
        rule="L4",
        what=f"{last} came back after leaving",
    )


async def partition(play: Any, oracle: Oracle) -> None:
    """L3: a fleet in two halves is one again within 3 intervals + log2(N)."""
    names = play.plan.names
    half, other = names[: len(names) // 2], names[len(names) // 2 :]
    play.isolate(*half)
    apart_s = 2 * ttl_s(play.plan) + legacy_s(play.plan)
    await trio.sleep(apart_s)
    oracle.look()
    for side in (half, other):
        demand(agreement(play, side)(), "L3", f"after {apart_s:g} s apart {side} are not one fleet")
    play.heal()
    limit_s = (
        (3 + math.log2(len(names))) * interval_s(play.plan)
        + EXCHANGE_S
        + LOOK_RATIO * play.plan.interval_s
    )
    await until(
        play, oracle, agreement(play, names), limit_s=limit_s, rule="L3", what="one fleet again"
    )


ENDINGS = {"": nothing, "loss": nothing, "death": death, "leave": leave, "partition": partition}
