"""Whom a tick calls, and when the next one is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kakeya.config.fleet import FleetLimits, demand_sound
from kakeya.errors import Refused
from kakeya.fleet.peers import (
    Candidates,
    Contact,
    PeerBook,
    Remembered,
    Target,
    delay_s,
    stretch,
    targets_of_leave,
    targets_of_push,
    targets_of_tick,
)
from tests.fleet.cards import LIMITS, NOW, card

SEED = 20_261_201


@pytest.fixture
def rng() -> random.Random:
    print(f"seed {SEED}")  # noqa: T201
    return random.Random(SEED)


def targets(prefix: str, count: int) -> list[Target]:
    return [Target(f"{prefix}{n}:1", f"{prefix}{n}") for n in range(count)]


def who(live=0, down=0, dead=0, seeds=0, missing=0) -> Candidates:
    rows = [Target(t.grpc_address, "") for t in targets("seed", seeds)]
    return Candidates(
        live=targets("live", live),
        down=targets("down", down),
        dead=targets("dead", dead),
        seeds=rows,
        missing_seeds=frozenset(t.grpc_address for t in rows[:missing]),
        num_live=live + down,
    )


def share(candidates: Candidates, prefix: str, rng: random.Random, ticks: int = 4000) -> float:
    """How many addresses of that kind a tick calls on average."""
    calls = [t for _ in range(ticks) for t in targets_of_tick(candidates, rng, LIMITS)]
    return sum(t.grpc_address.startswith(prefix) for t in calls) / ticks


@pytest.mark.spec("F-06")
def test_a_tick_calls_one_random_live_peer(rng):
    assert share(who(live=20), "live", rng) == 1.0
    called = {targets_of_tick(who(live=20), rng, LIMITS)[0].node_id for _ in range(500)}
    assert len(called) == 20


@pytest.mark.spec("F-06")
def test_remembered_dead_addresses_are_called_besides_and_seldom(rng):
    assert share(who(live=9, dead=1), "dead", rng) == pytest.approx(0.1, abs=0.03)
    assert share(who(live=3, dead=500), "dead", rng) == pytest.approx(0.25, abs=0.03)
    assert share(who(live=3, dead=500), "live", rng) == 1.0


@pytest.mark.spec("F-06")
def test_seeds_stay_in_rotation_for_ever(rng):
    assert share(who(live=9, seeds=2), "seed", rng) == pytest.approx(0.2, abs=0.03)
    assert share(who(live=199, seeds=2, missing=2), "seed", rng) == pytest.approx(0.2, abs=0.03)
    assert share(who(live=199, seeds=2), "seed", rng) == pytest.approx(0.01, abs=0.01)


@pytest.mark.spec("F-06")
def test_a_node_that_is_alone_calls_all_its_seeds(rng):
    assert share(who(seeds=3), "seed", rng, ticks=50) == 3.0
    assert len(targets_of_tick(who(seeds=64), rng, LIMITS)) == LIMITS.max_exchanges


@pytest.mark.spec("F-11")
def test_a_live_peer_that_did_not_answer_is_called_again_soon(rng):
    assert share(who(live=20, down=1), "down", rng) == 1.0


@pytest.mark.spec("F-08")
def test_a_last_card_goes_to_the_seeds_and_to_all_peers_of_a_small_fleet(rng):
    def called(**fleet):
        return {t.grpc_address for t in targets_of_leave(who(**fleet), rng, LIMITS)}

    small = who(live=5, down=1, seeds=2)
    everybody = {t.grpc_address for t in (*small.live, *small.down, *small.seeds)}
    assert called(live=5, down=1, seeds=2) == everybody
    many = [called(live=40, seeds=2) for _ in range(30)]
    assert {len(each) for each in many} == {LIMITS.max_exchanges}
    assert all({t.grpc_address for t in small.seeds} <= each for each in many)
    assert len(set().union(*many)) > 35


@pytest.mark.spec("F-08")
def test_news_go_to_three_peers_and_the_seeds(rng):
    chosen = targets_of_push(who(live=20, seeds=2), rng, LIMITS)
    assert sum(t.grpc_address.startswith("live") for t in chosen) == 3
    assert sum(t.grpc_address.startswith("seed") for t in chosen) == 2
    assert len({t.grpc_address for t in chosen}) == 5


@pytest.mark.spec("F-07")
def test_intervals_are_jittered_and_stretched_with_the_fleet(rng):
    drawn = [delay_s(3, rng, LIMITS) for _ in range(2000)]
    assert 8.0 <= min(drawn) < 8.1
    assert 11.9 < max(drawn) <= 12.0
    assert (stretch(1, LIMITS), stretch(32, LIMITS), stretch(64, LIMITS)) == (1, 1, 2)
    assert delay_s(256, rng, LIMITS) >= 0.8 * 40


@pytest.mark.spec("F-07")
def test_a_lifetime_under_twelve_intervals_must_be_asked_for():
    with pytest.raises(Refused, match=r"ttl_s is 120, less than 12 intervals of 20 s.*240"):
        demand_sound(replace(LIMITS, interval_s=20.0), ttl_is_explicit=False)
    demand_sound(replace(LIMITS, interval_s=20.0), ttl_is_explicit=True)
    demand_sound(LIMITS, ttl_is_explicit=False)
    for limits in (
        replace(LIMITS, ttl_s=5.0),
        replace(LIMITS, ttl_s=3601.0),
        replace(LIMITS, jitter_ratio=1.0),
    ):
        with pytest.raises(Refused):
            demand_sound(limits, ttl_is_explicit=True)


def book(*seeds: str, remembered=(), limits: FleetLimits = LIMITS) -> PeerBook:
    return PeerBook(own_id="me", seeds=seeds, remembered=remembered, limits=limits)


@pytest.mark.spec("F-06")
def test_addresses_of_live_nodes_are_remembered_for_a_day():
    mine, attic = book(), card("attic", grpc_address="10.0.0.2:1")
    mine.refresh([attic], NOW)
    mine.refresh([], NOW + 86_400)
    assert mine.remembered == (Remembered("10.0.0.2:1", "attic", NOW),)
    assert [t.node_id for t in mine.candidates([], "").dead] == ["attic"]
    mine.refresh([], NOW + 86_401)
    assert mine.remembered == ()


@pytest.mark.spec("F-06")
def test_the_address_a_node_left_is_forgotten():
    mine = book()
    mine.refresh([card("attic", grpc_address="10.0.0.2:1")], NOW)
    moved = [card("attic", grpc_address="10.0.0.3:1")]
    mine.refresh(moved, NOW + 1)
    assert [known.grpc_address for known in mine.remembered] == ["10.0.0.3:1"]
    assert mine.candidates(moved, "").dead == []


@pytest.mark.spec("F-06")
def test_no_more_addresses_are_remembered_than_the_limit():
    mine = book(limits=replace(LIMITS, max_addresses=5))
    for n in range(9):
        mine.refresh([card(f"n{n}", grpc_address=f"10.0.0.{n}:1")], NOW + n)
    assert [known.node_id for known in mine.remembered] == ["n4", "n5", "n6", "n7", "n8"]


@pytest.mark.spec("F-06")
def test_a_seed_is_missing_until_a_live_card_accounts_for_it():
    mine = book("attic.local:1", "10.0.0.3:1")
    live = [card("attic", grpc_address="10.0.0.2:1"), card("cellar", grpc_address="10.0.0.3:1")]
    assert mine.candidates(live, "").missing_seeds == {"attic.local:1"}
    mine.note("attic.local:1", Contact(node_id="attic"))
    assert mine.candidates(live, "").missing_seeds == set()


def test_a_node_does_not_call_itself():
    mine = book("10.0.0.1:1", "me.local:1")
    mine.note("me.local:1", Contact(node_id="me"))
    found = mine.candidates([card("ghost", grpc_address="10.0.0.1:1")], "10.0.0.1:1")
    assert (found.live, found.seeds) == ([], [])


@pytest.mark.spec("F-14")
def test_link_local_and_foreign_loopback_addresses_are_not_called():
    mine = book(remembered=[Remembered("169.254.169.254:80", "evil", NOW)])
    live = [
        card("evil", grpc_address="169.254.169.254:80"),
        card("near", grpc_address="127.0.0.1:1"),
    ]
    mine.refresh(live, NOW)
    found = mine.candidates(live, "")
    assert (found.live, found.down, found.dead) == ([], [], [])
    assert not mine.is_reachable(live[0].offer)
    mine.loopback_is_near = True
    assert [t.node_id for t in mine.candidates(live, "").live] == ["near"]


@pytest.mark.spec("F-11")
def test_a_failed_call_marks_the_address_until_one_is_answered():
    mine, attic = book(), card("attic")
    assert mine.note("10.0.0.2:50051", Contact(trouble="refused")) is True
    assert not mine.is_reachable(attic.offer)
    assert [t.node_id for t in mine.candidates([attic], "").down] == ["attic"]
    assert mine.note("10.0.0.2:50051", Contact()) is True
    assert mine.is_reachable(attic.offer)
