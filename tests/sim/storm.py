"""Random faults from one seed, then a calm in which all must agree and stay so."""

from __future__ import annotations

import math
import random

import trio

from tests.fleet.cards import frame
from tests.fleet.world import World, quick

LIMITS = quick(interval_s=1.0, ttl_s=12.0)
NAMES = ("attic", "barn", "cellar", "porch", "shed")
SEEDS = ("attic", "barn")
STORM_S = 60
FAULTS = ("kill", "start", "start", "cut", "heal", "hang", "step", "poison", "loss")


async def fault(world: World, rng: random.Random) -> None:
    """One thing that goes wrong, or right again."""
    name, what = rng.choice(NAMES), rng.choice(FAULTS)
    runs = name in world.members
    if what == "kill" and runs and len(world.members) > 2:
        await world.kill(name)
    elif what == "start" and not runs:
        await world.start(name, seeds=SEEDS, address=f"{name}:{rng.choice((50051, 50052))}")
    elif what == "cut":
        world.cut(*rng.sample(NAMES, 2))
    elif what == "heal":
        world.heal()
        world.hung.clear()
    elif what == "hang" and runs:
        world.hung.add(world.members[name].address)
    elif what == "step":
        world.offsets_s[name] = rng.uniform(-3, 3)
    elif what == "loss":
        world.loss = rng.choice((0.0, 0.1, 0.4))
    elif what == "poison" and runs:
        now = world.wall_of(name)()
        stamps = (math.nan, math.inf, now + 1e9, -1.0, now + 31)
        card = frame(rng.choice(NAMES), stamp=rng.choice(stamps))
        with trio.move_on_after(2):  # the link may be cut
            await world.push_raw(name, card)


def demand_invariants(world: World, held: dict[tuple[str, int, str], float]) -> None:
    """S1 nothing expired in a snapshot, S2 the own card there, S3 no held stamp goes back."""
    for name, member in world.members.items():
        cards = member.fleet.snapshot()
        now = world.wall_of(name)()
        assert cards[0].node_id == name
        assert len({card.node_id for card in cards}) == len(cards)
        for card in cards:
            assert not card.is_expired(now)
            key = name, id(member), card.node_id
            assert card.announced_at_unix >= held.get(key, 0.0)
            held[key] = card.announced_at_unix


async def man_a_seed(world: World) -> None:
    """Have a node at one of the addresses that all were given: the bound on agreement needs it.

    Where nobody lives at any of them, only remembered addresses bring nodes together, some day.
    """
    places = [f"{name}:50051" for name in SEEDS]
    if not any(place in world.at for place in places):
        if SEEDS[0] in world.members:
            await world.kill(SEEDS[0])
        await world.start(SEEDS[0], seeds=SEEDS, address=places[0])


async def storm(seed: int) -> None:
    """One fleet, one storm, one calm.  Raises AssertionError; run it on an autojumping clock."""
    rng = random.Random(f"{seed}/storm")
    held: dict[tuple[str, int, str], float] = {}
    async with World.open(seed=seed, limits=LIMITS) as world:
        for name in NAMES:
            await world.start(name, seeds=SEEDS)
        for _ in range(STORM_S):
            await trio.sleep(rng.uniform(0.5, 1.5))
            await fault(world, rng)
            demand_invariants(world, held)
        world.heal()
        world.hung.clear()
        world.loss = 0.0
        world.offsets_s = {name: rng.uniform(-1, 1) for name in NAMES}
        await man_a_seed(world)
        for name in NAMES:
            if name not in world.members:
                await world.start(name, seeds=SEEDS)
        # Stamps may still lie as far ahead as the clocks did, and calls under way run out first.
        limit_s = 2 * math.log2(len(NAMES)) + 6 + 3 + 2
        # A card of an earlier life at the same address looks right but may lapse at once, a
        # moment before the card of the present life comes: that is no agreement yet.
        await world.time_until(
            lambda: world.is_whole(*NAMES) and world.is_current(*NAMES), limit_s=limit_s
        )
        for _ in range(20):
            await trio.sleep(1)
            assert world.is_whole(*NAMES)
            demand_invariants(world, held)
