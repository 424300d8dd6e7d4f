"""The stamp of our own card, and others that carry our id."""

from __future__ import annotations

import pytest

from kakeya.errors import Refused
from kakeya.fleet.card import Model
from kakeya.fleet.own import OwnCard, next_stamp
from tests.fleet.cards import LIMITS, NOW, card

NEVER = float("-inf")


def own(persisted: float = NEVER) -> OwnCard:
    return OwnCard(
        card("me", grpc_address="10.0.0.1:50051").offer, persisted_unix=persisted, limits=LIMITS
    )


def stamp(now: float, issued=NEVER, persisted=NEVER, seen=NEVER) -> float:
    return next_stamp(now, issued=issued, persisted=persisted, seen=seen, limits=LIMITS)


@pytest.mark.spec("F-05")
def test_the_own_stamp_is_above_all_that_was_issued_and_never_far_ahead():
    assert stamp(NOW) == NOW
    assert stamp(NOW, issued=NOW) == NOW + 0.001
    assert stamp(NOW, persisted=NOW + 5) == NOW + 5.001
    assert stamp(NOW, seen=NOW + 1) == NOW + 21
    assert stamp(NOW, seen=NOW + 15) == NOW + 30
    assert stamp(NOW, persisted=NOW + 30) == NOW + 30
    # From a clock that was wrong: nobody believed it.
    assert stamp(NOW, persisted=NOW + 10**6) == NOW
    assert stamp(NOW, issued=NOW + 61, seen=NOW + 61) == NOW


@pytest.mark.spec("F-05")
def test_a_clock_set_back_a_little_costs_no_more_than_that():
    # At the most that is believed, and then a second back: peers may hold that stamp.
    assert stamp(NOW - 1, issued=NOW + 30) == NOW + 29
    assert stamp(NOW - 1, persisted=NOW + 30) == NOW + 29


@pytest.mark.spec("F-05")
def test_stamps_rise_even_when_the_clock_stands_still_or_steps_back_a_little():
    mine = own()
    stamps = [mine.issue(now).announced_at_unix for now in (NOW, NOW, NOW - 20, NOW - 20)]
    assert stamps == sorted(set(stamps))


@pytest.mark.spec("F-05")
def test_a_node_restarted_with_its_clock_set_back_is_believed_within_seventeen_seconds():
    before = own().issue(NOW + 20).announced_at_unix
    mine, since_s = own(persisted=before), 0.0
    while mine.issue(NOW - 20 + since_s).announced_at_unix <= before:
        since_s += 1.0
    assert since_s <= 17


@pytest.mark.spec("F-05")
def test_a_newer_card_with_our_id_is_outbid_at_once():
    mine = own()
    mine.issue(NOW)
    seen = card("me", stamp=NOW + 5, grpc_address="10.0.0.1:50050")
    assert mine.notice(seen, NOW) is True
    assert mine.last_stamp_unix == NOW + 25
    assert mine.notice(seen, NOW + 1) is False
    assert mine.conflict(NOW) == ""


@pytest.mark.spec("F-05")
def test_echoes_of_our_own_cards_force_nothing():
    mine = own()
    first = mine.issue(NOW)
    second = mine.issue(NOW + 10)
    assert mine.notice(first, NOW + 11) is False
    assert mine.notice(second, NOW + 11) is False
    assert mine.last_stamp_unix == NOW + 10


@pytest.mark.spec("F-08")
def test_the_last_card_has_no_models_and_lives_two_intervals():
    mine = own()
    mine.issue(NOW)
    last = mine.leave(NOW + 1)
    assert last.offer.models == ()
    assert last.offer.ttl_s == 2 * LIMITS.interval_s
    assert last.announced_at_unix == NOW + 1


@pytest.mark.spec("F-09")
def test_a_second_node_with_our_id_is_named_and_no_longer_outbid():
    mine = own()
    mine.issue(NOW)
    forced = []
    for tick in range(1, 9):
        now = NOW + 10 * tick
        theirs = max(now, mine.last_stamp_unix) + 0.5
        forced.append(mine.notice(card("me", stamp=theirs, grpc_address="10.0.0.9:1"), now))
    assert forced == [True, True, True] + [False] * 5
    assert mine.conflict(NOW + 80) == "10.0.0.9:1"
    assert mine.issue(NOW + 90).announced_at_unix <= NOW + 120


@pytest.mark.spec("F-09")
def test_a_conflict_is_over_when_the_other_falls_silent():
    mine = own()
    mine.issue(NOW)
    for n in (1, 2, 3):
        mine.notice(card("me", stamp=mine.last_stamp_unix + n, grpc_address="10.0.0.9:1"), NOW)
    assert mine.conflict(NOW + 240) == "10.0.0.9:1"
    assert mine.conflict(NOW + 241) == ""


@pytest.mark.spec("F-09")
def test_a_slower_node_with_our_id_is_found_by_its_address():
    mine = own()
    mine.issue(NOW)
    for tick in (1, 2, 3):
        mine.issue(NOW + 10 * tick)
        other = card("me", stamp=NOW + 10 * tick - 3, grpc_address="10.0.0.9:1")
        assert mine.notice(other, NOW + 10 * tick) is False
    assert mine.conflict(NOW + 30) == "10.0.0.9:1"


@pytest.mark.spec("F-01")
def test_we_offer_nothing_that_peers_would_refuse():
    mine = own()
    kept = mine.offer
    with pytest.raises(Refused, match="65 models, the limit is 64"):
        mine.offer_models([Model(f"m{n}", 2, "", 0.0) for n in range(65)])
    assert mine.offer == kept


def test_a_card_stays_as_it_is_until_it_is_an_interval_old():
    mine = own()
    first = mine.current(NOW, max_age_s=10)
    assert mine.current(NOW + 10, max_age_s=10) is first
    assert mine.current(NOW + 11, max_age_s=10).announced_at_unix == NOW + 11
