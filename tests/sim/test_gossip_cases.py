"""Reported cases of gossip, by their numbers, on whole nodes: HTTP/2 and placement included."""

from __future__ import annotations

import math
import time

import pytest
import trio

from kakeya.fleet.calls import CallFailed
from kakeya.fleet.channel_calls import ChannelCalls
from tests.fleet.cards import frame
from tests.sim.faults import NAMES
from tests.sim.nodes import NodeWorld, quick_settings
from tests.sim.seams import Disk

QUICK_S = 12.0  # the lifetime of a card in these worlds, with an interval of 1 s
HOUSE = NAMES[:4]


async def house(world: NodeWorld, names: tuple[str, ...] = HOUSE) -> None:
    """Nodes that see one another, the first of them everybody's seed."""
    await world.start(names[0])
    for name in names[1:]:
        await world.start(name, seeds=names[:1])
    await world.time_until(lambda: world.is_whole(*names), limit_s=6)


async def push(world: NodeWorld, name: str, view: bytes) -> bytes:
    """Exchange views as a peer that is not ours."""
    return await ChannelCalls(world.channels).exchange(world.address(name), view)


@pytest.mark.spec("F-01")
async def test_g01_a_card_eight_years_ahead_enters_nowhere_and_the_owner_lives_on(autojump_clock):
    async with NodeWorld.open(seed=1) as world:
        await house(world)
        ahead = world.clock("attic")() + 8 * 365 * 86400
        await push(world, "attic", frame("porch", stamp=ahead, grpc_address="nowhere:1"))
        for _ in range(30):
            await trio.sleep(1)
            assert world.is_whole(*HOUSE)


@pytest.mark.spec("F-05")
@pytest.mark.parametrize("skew_s", [0.0, -5.0, 5.0])
async def test_g02_an_hour_fast_killed_corrected_and_believed_within_four_intervals(
    skew_s, autojump_clock
):
    async with NodeWorld.open(seed=2) as world:
        world.clock("cellar").offset_s = skew_s
        world.clock("porch").offset_s = 3600.0
        await house(world, ("attic", "barn", "cellar"))
        await world.start("porch", seeds=("attic",))
        await trio.sleep(20)
        assert "porch" not in world.sees("attic")
        await world.kill("porch")
        world.clock("porch").offset_s = 0.0
        await world.start("porch", seeds=("attic",))
        names = ("attic", "barn", "cellar", "porch")
        await world.time_until(lambda: world.is_whole(*names), limit_s=4)
        for _ in range(60):
            await trio.sleep(1)
            assert world.is_whole(*names)


@pytest.mark.spec("F-05")
async def test_g03_a_clock_set_forward_and_after_a_crash_back_is_held_by_all_within_17_s(
    autojump_clock,
):
    settings = quick_settings(interval_s=5.0, ttl_s=60.0)
    async with NodeWorld.open(seed=3, settings=settings) as world:
        await world.start("attic")
        for name in ("barn", "porch"):
            await world.start(name, seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "barn", "porch"), limit_s=15)
        world.clock("porch").offset_s = 20.0
        await trio.sleep(12)
        await world.kill("porch")
        world.clock("porch").offset_s = -20.0
        await world.start("porch", seeds=("attic",), port=50077)
        await world.time_until(lambda: world.is_whole("attic", "barn", "porch"), limit_s=17)


@pytest.mark.spec("F-05")
async def test_g04_a_newer_card_with_my_id_is_outbid_and_mine_pushed_at_once(autojump_clock):
    async with NodeWorld.open(seed=4, settings=quick_settings(interval_s=10, ttl_s=120)) as world:
        await world.start("attic")
        stamp = world.clock("attic")() + 9
        await push(world, "attic", frame("porch", stamp=stamp, grpc_address="old:1"))
        await world.start("porch", seeds=("attic",))
        took_s = await world.time_until(lambda: world.is_whole("attic", "porch"), limit_s=5)
        assert took_s < 2.5  # an interval is 10 s
        assert world.fleet("porch").own_card().announced_at_unix > stamp


@pytest.mark.spec("F-01")
async def test_g05_after_four_hundred_days_a_restarted_node_is_believed(autojump_clock):
    async with NodeWorld.open(seed=5) as world:
        await house(world, ("attic", "barn"))
        for name in ("attic", "barn"):
            world.clock(name).offset_s = 400 * 86400.0
        await world.kill("barn")
        await world.start("barn", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "barn"), limit_s=4)


@pytest.mark.spec("F-04")
async def test_g06_a_dead_nodes_card_from_a_peer_with_a_slow_clock_is_no_ghost(autojump_clock):
    async with NodeWorld.open(seed=6) as world:
        skew_s = 5.0
        world.clock("barn").offset_s = -skew_s
        await house(world, ("attic", "barn", "porch"))
        await world.kill("porch")
        await trio.sleep(5)
        await world.start("shed", seeds=("barn",))
        here = ("attic", "barn", "shed")
        await world.time_until(lambda: world.is_whole(*here), limit_s=QUICK_S + 2 * skew_s + 1)
        for _ in range(40):
            await trio.sleep(1)
            assert world.is_whole(*here)


@pytest.mark.spec("F-06")
async def test_g07_a_restart_at_a_new_address_is_one_card_dialled_by_all(autojump_clock):
    async with NodeWorld.open(seed=7) as world:
        await house(world)
        await world.kill("porch")
        await world.start("porch", seeds=("attic",), port=50099)
        limit_s = math.log2(len(HOUSE)) + 1
        await world.time_until(lambda: world.is_whole(*HOUSE), limit_s=limit_s)
        await trio.sleep(20)
        for name in HOUSE[:3]:
            plan = world.fleet(name).plan(2, "ngram")
            assert "porch:50051" not in {choice.grpc_address for choice in plan.choices}
            assert world.network.dialled[name, "porch:50099"] >= 1


@pytest.mark.spec("F-06")
async def test_g08_a_fleet_forms_when_the_seeds_return_after_ten_minutes(autojump_clock):
    async with NodeWorld.open(seed=8) as world:
        for name in ("barn", "cellar", "porch"):
            await world.start(name, seeds=("attic",))
        await trio.sleep(600)
        await world.start("attic")
        await world.time_until(lambda: world.is_whole("attic", "barn", "cellar", "porch"),
                               limit_s=15)  # fmt: skip


@pytest.mark.spec("F-06")
async def test_g09_a_partition_of_five_lifetimes_heals_within_three_intervals_and_log_n(
    autojump_clock,
):
    async with NodeWorld.open(seed=9) as world:
        await house(world)
        for name in HOUSE[2:]:
            for other in HOUSE[:2]:
                world.network.cut(name, other)
        await trio.sleep(5 * QUICK_S)
        assert world.is_whole(*HOUSE[:2])
        assert world.is_whole(*HOUSE[2:])
        world.network.heal()
        # Calls that were under way run out first.
        limit_s = 3 + math.log2(len(HOUSE)) + 2
        await world.time_until(lambda: world.is_whole(*HOUSE), limit_s=limit_s)


@pytest.mark.spec("F-10")
async def test_g10_two_fleets_stay_two_when_one_takes_the_others_address(autojump_clock):
    async with NodeWorld.open(seed=10) as world:
        await house(world, ("attic", "barn"))
        await world.kill("barn")
        await world.start("alien", machine="barn", fleet_name="other", seeds=("attic",))
        await world.start("loft", fleet_name="other", seeds=("barn", "attic"))
        for _ in range(40):
            await trio.sleep(1)
            assert set(world.sees("attic")) <= {"attic", "barn"}
            assert set(world.sees("alien")) <= {"alien", "loft"}
        assert world.is_whole("alien", "loft")
        assert world.is_whole("attic")


@pytest.mark.spec("F-01")
async def test_g11_twenty_thousand_cards_are_refused_and_gossip_goes_on(autojump_clock):
    async with NodeWorld.open(seed=11) as world:
        await house(world)
        big = frame("x" * 100, models=[{"model_id": "m" * 400, "role": 2}] * 4) * 20_000
        assert len(big) > 32 << 20
        with pytest.raises(CallFailed, match="RESOURCE_EXHAUSTED"):
            await push(world, "attic", big)
        with pytest.raises(CallFailed, match="RESOURCE_EXHAUSTED"):
            await push(world, "attic", frame("tiny") * 20_000)
        running = world.nodes["attic"].running
        assert running.parts.endpoint.held_bytes == 0
        for _ in range(15):
            await trio.sleep(1)
            assert world.is_whole(*HOUSE)


@pytest.mark.spec("F-02")
async def test_g12_of_two_contents_with_one_stamp_the_same_wins_everywhere(autojump_clock):
    async with NodeWorld.open(seed=12) as world:
        await house(world)
        stamp = world.clock("attic")()
        one = frame("shed", stamp=stamp, grpc_address="nowhere:1")
        two = frame("shed", stamp=stamp, grpc_address="nowhere:2")
        for name, order in (("attic", (one, two)), ("porch", (two, one))):
            for view in order:
                await push(world, name, view)
        await trio.sleep(5)
        assert {world.sees(name)["shed"] for name in HOUSE} == {"nowhere:2"}


@pytest.mark.spec("F-01")
async def test_g13_a_newcomer_27_s_ahead_sees_and_is_seen(autojump_clock):
    async with NodeWorld.open(seed=13, settings=quick_settings(ttl_s=30.0)) as world:
        world.clock("shed").offset_s = 27.0
        await house(world)
        await world.start("shed", seeds=("attic",))
        names = (*HOUSE, "shed")
        await world.time_until(lambda: world.is_whole(*names), limit_s=5)
        for _ in range(40):
            await trio.sleep(1)
            assert world.is_whole(*names)


class Steps(trio.abc.Instrument):
    """The longest step of any task, in this thread's own CPU time: other processes do not count."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


@pytest.mark.spec("F-13")
async def test_g14_five_thousand_cards_hold_up_the_loop_by_no_step_over_20_ms(autojump_clock):
    # The shortest of some tries: a loaded machine, or what other tests left for the garbage
    # collector to look through, makes one longer, but never shorter.
    tries_s = []
    while len(tries_s) < 5 and min(tries_s, default=1.0) >= 0.02:
        async with NodeWorld.open(seed=14) as world:
            tries_s.append(await longest_step_s(world))
    assert min(tries_s) < 0.02, tries_s


async def longest_step_s(world: NodeWorld) -> float:
    """Push five thousand cards at a node; the longest step of any task meanwhile."""
    await world.start("attic")
    stamp = world.clock("attic")()
    cards = [
        frame(f"node-{n:05d}", stamp=stamp, ttl_seconds=60.0, grpc_address=f"h{n}:1")
        for n in range(5000)
    ]
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    for view in (cards[:2500], cards[2500:]):
        await push(world, "attic", b"".join(view))
    trio.lowlevel.remove_instrument(steps)
    assert len(world.sees("attic")) == 4096  # as many as a message may have
    return steps.longest_s


@pytest.mark.spec("F-06")
@pytest.mark.parametrize("seed", range(3))
async def test_g15_after_all_restart_at_once_with_skewed_clocks_all_see_all(seed, autojump_clock):
    names = NAMES[:8]
    async with NodeWorld.open(seed=seed) as world:
        await house(world, names)
        for n, name in enumerate(names):
            await world.kill(name)
            world.clock(name).offset_s = (n * 7919 % 11) - 5.0
        for name in names:
            await world.start(name, seeds=names[:2])
        limit_s = 2 * math.log2(len(names)) + 6
        await world.time_until(lambda: world.is_whole(*names), limit_s=limit_s)


async def test_a_lost_disk_costs_a_node_its_stamp_but_not_its_place(autojump_clock):
    async with NodeWorld.open(seed=16) as world:
        await house(world)
        await world.kill("porch")
        world.disks["porch"] = Disk(life=world.disks["porch"].life)
        world.clock("porch").offset_s = -5.0
        await world.start("porch", seeds=("attic",), port=50099)
        await world.time_until(lambda: world.is_whole(*HOUSE), limit_s=8)
