"""Fleets in motion: joining, leaving, dying, moving, hanging."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import trio
from structlog.testing import capture_logs

from kakeya.errors import Refused
from kakeya.fleet.calls import CallFailed
from kakeya.fleet.card import Model
from kakeya.fleet.placement import NobodyQualifies
from kakeya.fleet.store import MemoryStore, Saved
from tests.fleet.cards import frame
from tests.fleet.world import NGRAM, World, quick

QUICK = quick(interval_s=1.0, ttl_s=12.0)


async def trio_of_nodes(world: World) -> None:
    await world.start("attic")
    await world.start("cellar", seeds=("attic",))
    await world.start("porch", seeds=("attic",))


@pytest.mark.parametrize("seed", range(5))
async def test_three_nodes_with_one_seed_see_one_another_within_three_intervals(
    seed, autojump_clock
):
    async with World.open(seed=seed) as world:
        await trio_of_nodes(world)
        took_s = await world.time_until(
            lambda: world.is_whole("attic", "cellar", "porch"), limit_s=30
        )
        assert took_s <= 3 * world.limits.interval_s


@pytest.mark.spec("F-04")
async def test_a_killed_node_is_gone_everywhere_by_its_lifetime_and_one_interval(autojump_clock):
    async with World.open(seed=7, limits=QUICK) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=9)
        await world.kill("porch")
        took_s = await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=13)
        assert took_s > 10  # it was not dropped for one failed call
        await trio.sleep(60)
        assert world.is_whole("attic", "cellar")


@pytest.mark.spec("F-06")
async def test_a_node_restarted_on_another_port_is_one_card_at_the_new_address(autojump_clock):
    async with World.open(seed=8, limits=QUICK) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=9)
        await world.kill("porch")
        await world.start("porch", seeds=("attic",), address="porch:50099")
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=3)
        world.dialled.clear()
        await trio.sleep(30)
        assert all(to != "porch:50051" for _, to, _ in world.dialled)
        places = {c.grpc_address for c in world.fleet("attic").plan(2, "ngram").choices}
        assert "porch:50051" not in places
        assert "porch:50099" in places


async def test_a_node_keeps_its_made_up_name_across_restarts(autojump_clock):
    async with World.open(seed=8, limits=QUICK) as world:
        store = world.stores["attic"] = MemoryStore()
        await world.start("attic", node_id="")
        await trio.sleep(5)
        name = world.fleet("attic").node_id
        await world.kill("attic")
        assert store.saved.node_id == name
        await world.start("attic", node_id="")
        assert world.fleet("attic").node_id == name


@pytest.mark.spec("F-01")
async def test_a_poisoned_view_does_not_fail_the_exchange(autojump_clock):
    async with World.open(seed=9, limits=QUICK) as world:
        await world.start("attic")
        now = world.wall_of("attic")()
        poison = [
            frame("future", stamp=now + 8 * 365 * 86400),
            frame("nan", stamp=math.nan),
            frame("x" * (1 << 20), stamp=now),
            frame("ttl", stamp=now, ttl_seconds=1e308),
            frame("attic", stamp=now + 1e6),
            frame("many", stamp=now, models=[{"model_id": "m", "role": 2}] * 4000),
            frame("good", stamp=now),
        ]
        answer = await world.push_raw("attic", b"".join(poison))
        assert set(world.sees("attic")) == {"attic", "good"}
        assert b"good" in answer
        assert world.fleet("attic").own_card().offer.models
        counts = world.fleet("attic").rejections()
        assert (counts["future"], counts["stamp"], counts["size"], counts["ttl"]) == (2, 1, 2, 1)


@pytest.mark.spec("F-01")
async def test_a_bad_card_is_logged_once_and_counted_each_time(autojump_clock):
    async with World.open(seed=9, limits=QUICK) as world:
        await world.start("attic")
        bad = frame("cellar", stamp=world.wall_of("attic")(), ttl_seconds=-1.0)
        with capture_logs() as lines:
            for _ in range(5):
                await world.push_raw("attic", bad)
        assert [line["reason"] for line in lines if line["log_level"] == "warning"] == ["ttl"]
        assert world.fleet("attic").rejections()["ttl"] == 5


@pytest.mark.spec("F-01")
async def test_too_many_cards_fail_their_own_exchange_alone(autojump_clock):
    async with World.open(seed=9, limits=QUICK) as world:
        await trio_of_nodes(world)
        tiny = b"\x0a\x00"
        with pytest.raises(CallFailed, match="more than 4096 cards"):
            await world.push_raw("attic", tiny * 100_000)
        with pytest.raises(CallFailed, match="the limit is 4128768"):
            await world.push_raw("attic", frame("x" * 2000) * 20_000)
        with pytest.raises(CallFailed, match="not an ExchangeCapabilitiesRequest"):
            await world.push_raw("attic", b"\x0a\x05abc")
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=4)


@pytest.mark.spec("F-05")
async def test_a_fast_node_killed_and_corrected_is_believed_everywhere_within_four_intervals(
    autojump_clock,
):
    async with World.open(seed=10, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.start("porch", seeds=("attic",), offset_s=3600)
        await trio.sleep(20)
        assert "porch" not in world.sees("attic")
        await world.kill("porch")
        await world.start("porch", seeds=("attic",), offset_s=0)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=4)


@pytest.mark.spec("F-05")
async def test_a_clock_set_forward_and_after_a_crash_back_is_believed_within_seventeen_seconds(
    autojump_clock,
):
    async with World.open(seed=11, limits=quick(5.0, 60.0)) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=15)
        world.offsets_s["porch"] = 20.0
        await trio.sleep(12)
        await world.kill("porch")
        await world.start(
            "porch", seeds=("attic",), offset_s=-20.0, models=(Model("new", 2, "", 0.0),)
        )

        def is_new(on: str) -> bool:
            cards = {c.node_id: c for c in world.fleet(on).snapshot()}
            return "porch" in cards and cards["porch"].offer.models[0].model_id == "new"

        await world.time_until(lambda: is_new("attic") and is_new("cellar"), limit_s=17)


@pytest.mark.spec("F-05")
async def test_a_newer_card_with_our_id_in_the_first_reply_is_outbid_and_pushed_at_once(
    autojump_clock,
):
    async with World.open(seed=12) as world:
        await world.start("attic")
        now = world.wall_of("attic")()
        await world.push_raw("attic", frame("porch", stamp=now + 9, grpc_address="old:1"))
        assert world.sees("attic")["porch"] == "old:1"
        await world.start("porch", seeds=("attic",))
        took_s = await world.time_until(
            lambda: world.sees("attic")["porch"] == "porch:50051", limit_s=10
        )
        assert took_s < 2.5  # an interval is 10 s
        assert world.fleet("porch").own_card().announced_at_unix >= now + 9


@pytest.mark.spec("F-04")
async def test_a_dead_nodes_card_from_a_peer_with_a_slow_clock_is_no_ghost(autojump_clock):
    async with World.open(seed=13, limits=QUICK) as world:
        skew_s = 5.0
        await world.start("attic")
        await world.start("slow", seeds=("attic",), offset_s=-skew_s)
        await world.start("porch", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "slow", "porch"), limit_s=9)
        await world.kill("porch")
        await trio.sleep(5)
        await world.start("newcomer", seeds=("slow",))
        here = ("attic", "slow", "newcomer")
        await world.time_until(lambda: world.is_whole(*here), limit_s=12 + 2 * skew_s + 1)
        for _ in range(50):
            await trio.sleep(1)
            assert world.is_whole(*here)


@pytest.mark.spec("F-06")
async def test_a_fleet_forms_when_seeds_come_back_after_ten_minutes(autojump_clock):
    async with World.open(seed=14) as world:
        await world.start("cellar", seeds=("attic",))
        await world.start("porch", seeds=("attic",))
        await trio.sleep(600)
        assert not world.is_whole("cellar", "porch")
        await world.start("attic")
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=45)


@pytest.mark.spec("F-06")
async def test_a_partition_of_five_lifetimes_heals(autojump_clock):
    async with World.open(seed=15, limits=QUICK) as world:
        names = ("attic", "cellar", "porch", "shed")
        await world.start("attic")
        for name in names[1:]:
            await world.start(name, seeds=("attic",))
        await world.time_until(lambda: world.is_whole(*names), limit_s=9)
        world.cut("porch", "shed")
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=20)
        await trio.sleep(60)
        assert world.is_whole("porch", "shed")
        world.heal()
        # 3 intervals + log2 N, and the calls that were under way at the cut run out first.
        await world.time_until(lambda: world.is_whole(*names), limit_s=3 + math.log2(4) + 2 * 2)


@pytest.mark.spec("F-06")
async def test_without_seeds_remembered_addresses_bring_a_restarted_node_back(autojump_clock):
    async with World.open(seed=16, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=5)
        await trio.sleep(3)
        await world.kill("cellar")
        await trio.sleep(60)
        await world.start("cellar")
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=25)


@pytest.mark.spec("F-07")
@pytest.mark.parametrize("seed", range(17, 22))
async def test_three_hung_peers_cost_one_deadline_and_delay_nobody(seed, autojump_clock):
    async with World.open(seed=seed, limits=QUICK) as world:
        hung = ("h1", "h2", "h3")
        world.hung = {f"{name}:50051" for name in hung}
        for name in hung:
            await world.start(name)
        await world.start("attic")
        await world.start("cellar", seeds=(*hung, "attic"))
        took_s = await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)
        assert took_s < 1
        stamps = []
        for _ in range(20):
            await trio.sleep(1)
            stamps.append(world.fleet("cellar").own_card().announced_at_unix)
        assert max(b - a for a, b in itertools.pairwise(stamps)) <= 4


@pytest.mark.spec("F-08")
async def test_a_leaving_node_offers_nothing_at_once_and_is_gone_in_two_intervals(autojump_clock):
    async with World.open(seed=18, limits=QUICK) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=9)
        start_s = trio.current_time()
        await world.fleet("porch").leave()
        assert trio.current_time() - start_s <= world.limits.exchange_deadline_s
        for name in ("attic", "cellar"):
            assert "porch" not in [c.node_id for c in world.fleet(name).plan(2, "").choices]
        await world.kill("porch")
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=3)


@pytest.mark.spec("F-08")
async def test_a_node_that_left_announces_nothing_more(autojump_clock):
    async with World.open(seed=18, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)
        await world.fleet("cellar").leave()
        world.fleet("cellar").announce([NGRAM])
        await trio.sleep(10)
        assert "cellar" not in world.sees("attic")
        assert world.fleet("cellar").own_card().offer.models == ()


@pytest.mark.spec("F-09")
async def test_two_nodes_with_one_id_both_name_the_other_and_stop_bidding(autojump_clock):
    async with World.open(seed=19, limits=QUICK) as world:
        await world.start("attic")
        await world.start("one", node_id="twin", seeds=("attic",))
        await world.start("two", node_id="twin", seeds=("attic",))
        with capture_logs() as lines:
            await trio.sleep(30)
        alarms = [line for line in lines if line["log_level"] == "error"]
        assert [{line["address"], line["other_address"]} for line in alarms] == [
            {"one:50051", "two:50051"}
        ] * 2
        for name, other in (("one", "two:50051"), ("two", "one:50051")):
            row = world.fleet(name).nodes()[0]
            assert row.conflict_address == other
        before = len(world.dialled)
        ahead_s = world.fleet("one").own_card().announced_at_unix - world.wall_of("one")()
        assert ahead_s <= world.limits.max_ahead_s
        await trio.sleep(60)
        assert len(world.dialled) - before <= 60 * 2 * 4  # ticks, no storm of pushes


@pytest.mark.spec("F-09")
async def test_two_nodes_with_one_id_that_only_know_each_other_find_out(autojump_clock):
    async with World.open(seed=20, limits=QUICK) as world:
        await world.start("one", node_id="twin")
        await world.start("two", node_id="twin", seeds=("one",))
        await trio.sleep(30)
        assert world.fleet("two").nodes()[0].conflict_address == "one:50051"


@pytest.mark.spec("F-09")
async def test_after_a_sign_of_a_second_node_with_our_id_every_tick_listens_for_it(autojump_clock):
    never = replace(QUICK, listen_probability=0.0)
    async with World.open(seed=24, limits=never) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)

        async def calls_in(ticks: int) -> int:
            world.dialled.clear()
            await trio.sleep(ticks * world.limits.interval_s)
            return sum(caller == "attic" for caller, _, _ in world.dialled)

        assert 9 <= await calls_in(10) <= 12
        lately = world.wall_of("attic")() - 2
        await world.push_raw("attic", frame("attic", stamp=lately, grpc_address="barn:50051"))
        assert 18 <= await calls_in(10) <= 24
        await trio.sleep(2 * world.limits.ttl_s)
        assert 9 <= await calls_in(10) <= 12


@pytest.mark.spec("F-10")
async def test_two_fleets_do_not_merge_when_a_node_takes_a_remembered_address(autojump_clock):
    async with World.open(seed=21, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)
        await world.kill("cellar")
        await world.start("barn", address="cellar:50051", fleet_name="other")
        await world.start("loft", fleet_name="other", seeds=("cellar:50051", "attic"))
        for _ in range(60):
            await trio.sleep(1)
            assert set(world.sees("attic")) <= {"attic", "cellar"}
            assert set(world.sees("barn")) <= {"barn", "loft"}
        assert world.is_whole("barn", "loft")
        with pytest.raises(CallFailed, match="FAILED_PRECONDITION"):
            await world.push_raw("attic", b"", fleet_name="other")


@pytest.mark.spec("F-10")
async def test_a_stranger_at_a_peers_address_gets_no_view(autojump_clock):
    async with World.open(seed=22, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)
        await world.kill("cellar")
        await world.start("stranger", address="cellar:50051")
        await trio.sleep(5)
        assert set(world.sees("stranger")) == {"stranger"}
        assert "stranger lives there now" in world.fleet("attic").nodes()[1].trouble


@pytest.mark.spec("F-11")
async def test_a_node_not_reachable_from_here_keeps_its_card_and_loses_its_place(autojump_clock):
    async with World.open(seed=23, limits=QUICK) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=9)
        world.cuts = {("attic", "porch")}  # one way: porch still calls attic
        await trio.sleep(40)
        rows = {row.node_id: row for row in world.fleet("attic").nodes()}
        assert not rows["porch"].reachable
        assert rows["porch"].trouble == "no answer within 2 s"
        assert rows["cellar"].reachable
        plan = world.fleet("attic").plan(2, "ngram")
        assert [c.node_id for c in plan.choices] == ["cellar", "attic"]
        assert "porch: offers ngram at porch:50051; seen, not reachable from here" in plan.lines
        world.heal()
        await world.time_until(lambda: world.fleet("attic").nodes()[2].reachable, limit_s=4)


@pytest.mark.spec("F-11")
async def test_a_failed_draft_call_moves_the_plan_at_once_and_gossip_brings_it_back(autojump_clock):
    async with World.open(seed=24, limits=QUICK) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=9)
        fleet = world.fleet("attic")
        assert fleet.plan(2, "ngram").choices[0].node_id == "cellar"
        fleet.note_unreachable("cellar:50051", "no draft within 0.5 s")
        assert fleet.plan(2, "ngram").choices[0].node_id == "attic"
        await world.time_until(
            lambda: fleet.plan(2, "ngram").choices[0].node_id == "cellar", limit_s=2
        )


@pytest.mark.spec("F-12")
async def test_clock_skew_is_measured_from_probes_and_warned_of(autojump_clock):
    async with World.open(seed=25, limits=QUICK, latency_s=0.2) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",), offset_s=5.0)
        with capture_logs() as lines:
            await trio.sleep(10)
        warned = [n["node_id"] for n in lines if n["event"] == "a peer's clock is off"]
        assert sorted(warned) == ["attic", "cellar"]  # once each: 5 s is above 12 s / 4
        skews = {r.node_id: r.clock_skew_s for r in world.fleet("attic").nodes()}
        assert skews["attic"] == 0
        assert skews["cellar"] == pytest.approx(5.0, abs=0.1)
        back = {r.node_id: r.clock_skew_s for r in world.fleet("cellar").nodes()}
        assert back["attic"] == pytest.approx(-5.0, abs=0.1)


@pytest.mark.spec("F-01", "F-12")
@pytest.mark.parametrize("offset_s", [5.0, -5.0, 600.0, -600.0])
async def test_a_node_with_a_wrong_clock_works_and_the_others_are_untouched(
    offset_s, autojump_clock
):
    async with World.open(seed=26) as world:
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.start("porch", seeds=("attic",), offset_s=offset_s)
        await trio.sleep(60)
        assert {"attic", "cellar"} <= set(world.sees("attic"))
        assert ("porch" in world.sees("attic")) is (abs(offset_s) < 30)
        assert world.fleet("porch").plan(2, "ngram").choices


async def test_a_newcomer_twenty_seven_seconds_ahead_sees_and_is_seen(autojump_clock):
    async with World.open(seed=27, limits=quick(2.5, 30.0)) as world:
        await world.start("attic")
        await world.start("newcomer", seeds=("attic",), offset_s=27.0)
        await world.time_until(lambda: world.is_whole("attic", "newcomer"), limit_s=10)
        for _ in range(40):
            await trio.sleep(1)
            assert world.is_whole("attic", "newcomer")


@pytest.mark.parametrize("seed", range(3))
async def test_after_all_nodes_restart_at_once_all_see_all(seed, autojump_clock):
    async with World.open(seed=seed) as world:
        names = [f"n{i}" for i in range(8)]
        for i, name in enumerate(names):
            await world.start(name, seeds=("n0", "n1"), offset_s=(i % 3 - 1) * 2.0)
        await world.time_until(lambda: world.is_whole(*names), limit_s=120)
        for name in names:
            await world.kill(name)
        for i, name in enumerate(names):
            await world.start(name, seeds=("n0", "n1"), offset_s=(2 - i % 3) * 2.0)
        limit_s = (2 * math.log2(8) + 6) * world.limits.interval_s
        await world.time_until(lambda: world.is_whole(*names), limit_s=limit_s)


async def test_no_live_card_lapses_at_ten_percent_loss(autojump_clock):
    async with World.open(seed=28) as world:
        names = [f"n{i}" for i in range(6)]
        for name in names:
            await world.start(name, seeds=("n0", "n1"))
        await world.time_until(lambda: world.is_whole(*names), limit_s=120)
        world.loss = 0.1
        for _ in range(600):
            await trio.sleep(1)
            assert world.is_whole(*names)


@pytest.mark.spec("F-14")
async def test_a_node_bound_to_a_wildcard_advertises_its_end_of_the_route(autojump_clock):
    async with World.open(seed=29, limits=QUICK) as world:
        await world.start("attic", address="10.0.0.2:50051")
        await world.start(
            "cellar", seeds=("10.0.0.2:50051",), address="10.0.0.3:50051", bind="0.0.0.0"
        )
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=5)


@pytest.mark.spec("F-14")
async def test_the_first_node_of_a_fleet_learns_its_address_from_its_first_caller(autojump_clock):
    async with World.open(seed=29, limits=QUICK) as world:
        await world.start("attic", address="10.0.0.2:50051", bind="0.0.0.0")
        await trio.sleep(5)
        assert world.sees("attic") == {"attic": ""}
        await world.start("cellar", seeds=("10.0.0.2:50051",), address="10.0.0.3:50051")
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=5)


@pytest.mark.spec("F-14")
async def test_an_address_that_changes_at_run_time_is_announced_within_one_interval(
    autojump_clock,
):
    async with World.open(seed=29, limits=QUICK) as world:
        await world.start("attic", address="10.0.0.2:50051")
        await world.start(
            "cellar", seeds=("10.0.0.2:50051",), address="10.0.0.3:50051", bind="0.0.0.0"
        )
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=5)
        await trio.sleep(5)
        world.move("cellar", "10.0.0.7:50051")
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=1.5)


@pytest.mark.spec("F-14")
async def test_a_node_on_loopback_does_not_exchange_with_other_machines(autojump_clock):
    async with World.open(seed=30, limits=QUICK) as world:
        await world.start("attic", address="10.0.0.2:50051")
        await world.start("cellar", seeds=("10.0.0.2:50051",), address="127.0.0.1:50051")
        await trio.sleep(5)
        assert set(world.sees("attic")) == {"attic"}
        with pytest.raises(CallFailed, match="listens on 127.0.0.1 only.*--advertise"):
            await world.push_raw("cellar", b"")


@pytest.mark.spec("F-14")
async def test_link_local_and_wildcard_addresses_of_cards_are_never_called(autojump_clock):
    async with World.open(seed=31, limits=QUICK) as world:
        await world.start("attic")
        now = world.wall_of("attic")()
        evil = ("169.254.169.254:80", "[fe80::1]:1", "0.0.0.0:1", "127.0.0.1:22", "0xa9fea9fe:80")
        cards = [frame(f"evil{n}", stamp=now, grpc_address=a) for n, a in enumerate(evil)]
        await world.push_raw("attic", b"".join(cards))
        await trio.sleep(10)
        assert len(world.sees("attic")) == 6
        assert [to for _, to, _ in world.dialled if to in evil] == []
        assert [r.reachable for r in world.fleet("attic").nodes()] == [True] + [False] * 5


async def test_new_models_are_known_everywhere_long_before_the_next_tick(autojump_clock):
    async with World.open(seed=32) as world:
        await trio_of_nodes(world)
        await world.time_until(lambda: world.is_whole("attic", "cellar", "porch"), limit_s=30)
        await trio.sleep(2)
        world.fleet("porch").announce([NGRAM, Model("dflash", 2, "bf16", 300.0)])

        def is_known(on: str) -> bool:
            try:
                return world.fleet(on).plan(2, "dflash").choices[0].node_id == "porch"
            except NobodyQualifies:
                return False

        took_s = await world.time_until(
            lambda: is_known("attic") and is_known("cellar"), limit_s=10
        )
        assert took_s < 2


@pytest.mark.spec("F-05")
async def test_a_probe_of_an_idle_node_never_shows_an_expired_card(autojump_clock):
    async with World.open(seed=33, limits=QUICK) as world:
        member = await world.start("attic")
        member.scope.cancel()  # the ticker is dead, the service lives
        await trio.sleep(500)
        card = world.fleet("attic").own_card()
        assert not card.is_expired(world.wall_of("attic")())
        assert set(world.sees("attic")) == {"attic"}


@pytest.mark.spec("F-05")
async def test_the_last_stamp_is_saved_at_every_tick(autojump_clock):
    async with World.open(seed=34, limits=QUICK) as world:
        await world.start("attic")
        await trio.sleep(10)
        saved = world.stores["attic"].saved
        assert saved.node_id == "attic"
        assert saved.last_stamp_unix >= world.wall_of("attic")() - 1.3


async def test_a_disk_that_fails_stops_nothing(autojump_clock):
    class Broken(MemoryStore):
        async def save(self, saved: Saved) -> None:
            raise OSError(28, "No space left on device")

    async with World.open(seed=35, limits=QUICK) as world:
        world.stores["attic"] = Broken()
        await world.start("attic")
        await world.start("cellar", seeds=("attic",))
        await world.time_until(lambda: world.is_whole("attic", "cellar"), limit_s=5)
        await trio.sleep(20)
        assert world.is_whole("attic", "cellar")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fleet_name": "two words"}, "the fleet name is 'two words'"),
        ({"seeds": ("nonsense:port",)}, "peer is 'nonsense:port', it must be HOST:PORT"),
        ({"node_id": "x" * 200}, "a node_id of 200 bytes"),
    ],
)
async def test_settings_that_cannot_work_are_refused_before_anything_starts(
    fields, why, autojump_clock
):
    async with World.open(seed=36) as world:
        with pytest.raises(Refused, match=why):
            await world.start("attic", **fields)


@pytest.mark.parametrize("seed", range(3))
async def test_the_same_seed_runs_the_same_way(seed, autojump_clock):
    async def trace() -> list[tuple[str, str, str]]:
        async with World.open(seed=seed, limits=QUICK) as world:
            await trio_of_nodes(world)
            await trio.sleep(20)
            return sorted(world.dialled)

    assert await trace() == await trace()
