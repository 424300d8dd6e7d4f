"""The very moment at which a card leaves each view, by each viewer's own clock."""

from __future__ import annotations

import pytest
import trio

from tests.fleet.cards import frame
from tests.fleet.world import World, quick

QUICK = quick(interval_s=1.0, ttl_s=12.0)
VIEWERS = ("attic", "barn", "cellar")


async def last_seen(world: World, node_id: str) -> dict[str, tuple[float, float]]:
    """For every viewer, the last moment (by its own clock, and by the true one) it shows a node.

    Looked at every thousandth of a second about the time when one goes, and only by asking for
    its view.
    """
    seen: dict[str, tuple[float, float]] = {}
    ends_s = [
        trio.current_time() + card.expires_at_unix - world.wall_of(name)()
        for name in VIEWERS
        for card in world.fleet(name).snapshot()
        if card.node_id == node_id
    ]
    while any(node_id in world.sees(name) for name in VIEWERS):
        if all(abs(end_s - trio.current_time()) > 0.12 for end_s in ends_s):
            await trio.sleep(0.1)
        for name in VIEWERS:
            if node_id in world.sees(name):
                seen[name] = world.wall_of(name)(), trio.current_time()
        await trio.sleep(0.001)
    return seen


@pytest.mark.spec("F-04")
@pytest.mark.parametrize("skews_s", [(0.0, 0.0, 0.0), (0.0, 2.5, -2.5), (1.0, -4.0, 4.0)])
async def test_a_dead_nodes_card_leaves_each_view_when_its_lifetime_is_over_there(
    skews_s, autojump_clock
):
    async with World.open(seed=1, limits=QUICK) as world:
        for name, skew_s in zip(VIEWERS, skews_s, strict=True):
            await world.start(name, seeds=VIEWERS[:1], offset_s=skew_s)
        await world.start("porch", seeds=VIEWERS[:1])
        everybody = (*VIEWERS, "porch")
        await world.time_until(lambda: world.is_whole(*everybody), limit_s=6)
        await trio.sleep(3)
        await world.kill("porch")
        await trio.sleep(3)  # its last card is everywhere by now
        stamps = {
            card.announced_at_unix
            for name in VIEWERS
            for card in world.fleet(name).snapshot()
            if card.node_id == "porch"
        }
        assert len(stamps) == 1
        end_unix = stamps.pop() + QUICK.ttl_s
        seen = await last_seen(world, "porch")
        for name in VIEWERS:
            assert end_unix - 0.002 < seen[name][0] <= end_unix
        true_ends = [seen[name][1] for name in VIEWERS]
        assert max(true_ends) - min(true_ends) == pytest.approx(
            max(skews_s) - min(skews_s), abs=0.004
        )


@pytest.mark.spec("F-04")
async def test_a_card_is_there_at_its_last_moment_and_gone_in_the_next(autojump_clock):
    async with World.open(seed=2, limits=QUICK) as world:
        await world.start("attic")
        stamp = world.wall_of("attic")()
        await world.push_raw("attic", frame("porch", stamp=stamp, ttl_seconds=5.0))
        start_s = stamp - world.wall_of("attic")() + trio.current_time()
        await trio.sleep_until(start_s + 4.9999)
        assert "porch" in world.sees("attic")
        assert b"porch" in await served(world)
        await trio.sleep_until(start_s + 5.0001)
        assert "porch" not in world.sees("attic")
        assert b"porch" not in await served(world)


async def served(world: World) -> bytes:
    """What the node would send to a peer at this very moment."""
    await trio.lowlevel.checkpoint()
    return world.fleet("attic")._gossip.view(is_near=False)


@pytest.mark.spec("F-04")
async def test_a_clock_that_steps_moves_the_moment_with_it(autojump_clock):
    async with World.open(seed=3, limits=QUICK) as world:
        await world.start("attic")
        stamp = world.wall_of("attic")()
        await world.push_raw("attic", frame("porch", stamp=stamp, ttl_seconds=10.0))
        world.offsets_s["attic"] = 10.5
        assert "porch" not in world.sees("attic")  # at once
        world.offsets_s["attic"] = 0.0
        await world.push_raw("attic", frame("porch", stamp=stamp, ttl_seconds=10.0))
        assert "porch" not in world.sees("attic")  # a dropped card is no ghost
        await world.push_raw("attic", frame("porch", stamp=stamp + 1, ttl_seconds=10.0))
        assert "porch" in world.sees("attic")


@pytest.mark.spec("F-04")
@pytest.mark.parametrize("drift", [-0.01, 0.01])
async def test_a_clock_that_drifts_moves_the_moment_by_as_much(drift, autojump_clock):
    async with World.open(seed=4, limits=QUICK) as world:
        await world.start("attic")
        stamp = world.wall_of("attic")()
        start_s = trio.current_time()
        await world.push_raw("attic", frame("porch", stamp=stamp, ttl_seconds=10.0))
        world.drifts["attic"] = drift
        world.offsets_s["attic"] = -start_s * drift
        end_s = start_s + 10.0 / (1 + drift)
        await trio.sleep_until(end_s - 0.003)
        assert "porch" in world.sees("attic")
        await trio.sleep_until(end_s + 0.003)
        assert "porch" not in world.sees("attic")
