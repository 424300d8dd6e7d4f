"""Large fleets.  Long times are for the command: just sim --nodes 50 --hours 1 --level fleet."""

from __future__ import annotations

import math
import random

import pytest
import trio

from kakeya.fleet.peers import stretch
from tests.fleet.world import World
from tests.sim.logs import recorded
from tests.sim.trace import Trace


async def crowd(world: World, num_nodes: int) -> tuple[str, ...]:
    """Start so many nodes within one interval, clocks within 2 s, the first two being the seeds."""
    rng = random.Random(f"{world.seed}/crowd")
    names = tuple(f"n{n}" for n in range(num_nodes))
    for name in names:
        await world.start(name, seeds=names[:2], offset_s=rng.uniform(-2, 2))
        await trio.sleep(world.limits.interval_s / num_nodes)
    return names


@pytest.mark.parametrize(("num_nodes", "most_s"), [(20, 60), (50, 100), (200, 200)])
async def test_a_crowd_that_starts_at_once_agrees_within_2_log2_n_plus_6_intervals(
    num_nodes, most_s, autojump_clock
):
    """Well before that, as measured: 200 nodes within 200 s."""
    async with World.open(seed=num_nodes) as world:
        with recorded(Trace()):
            names = await crowd(world, num_nodes)
            interval_s = world.limits.interval_s * stretch(num_nodes, world.limits)
            assert most_s <= (2 * math.log2(num_nodes) + 6) * interval_s
            await world.time_until(lambda: world.is_whole(*names), limit_s=most_s, every_s=4)
