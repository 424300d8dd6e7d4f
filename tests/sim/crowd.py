"""Many nodes that start at once, at the pace of real fleets, and how long till they agree."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import trio

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.peers import stretch
from tests.fleet.world import World
from tests.sim.logs import recorded
from tests.sim.trace import Trace


@dataclass(frozen=True)
class Agreed:
    """How long it took, and the bound: 2·log2(N) + 6 intervals, stretched as N asks for."""

    took_s: float
    bound_s: float


def bound_s(num_nodes: int) -> float:
    limits = FleetLimits()
    return (2 * math.log2(num_nodes) + 6) * limits.interval_s * stretch(num_nodes, limits)


async def crowd(num_nodes: int, *, seed: int, most_s: float) -> Agreed:
    """Start so many within one interval, clocks within 2 s of the true one, two of them seeds.

    Raises AssertionError when they do not agree within `most_s`.
    """
    rng = random.Random(f"{seed}/crowd")
    names = tuple(f"n{n}" for n in range(num_nodes))
    async with World.open(seed=seed, is_silent=True) as world:
        with recorded(Trace()):
            for name in names:
                await world.start(name, seeds=names[:2], offset_s=rng.uniform(-2, 2))
                await trio.sleep(world.limits.interval_s / num_nodes)
            took_s = await world.time_until(
                lambda: world.is_whole(*names), limit_s=most_s, every_s=4
            )
    return Agreed(took_s, bound_s(num_nodes))
