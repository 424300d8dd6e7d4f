"""Merging, expiry and the memory of stamps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.frames import framed, split
from kakeya.fleet.registry import Registry
from tests.fleet.cards import LIMITS, NGRAM, NOW, fleet_of, frame, message


def registry(limits: FleetLimits = LIMITS) -> Registry:
    return Registry("me", limits)


def held(of: Registry, now_unix: float = NOW) -> dict[str, float]:
    return {card.node_id: card.announced_at_unix for card in of.live(now_unix)}


@pytest.mark.spec("F-01")
def test_bad_cards_do_not_keep_the_good_ones_of_a_message_out():
    here = registry()
    merged = here.merge([frame("a"), frame(stamp=math.nan), framed(b"\xff"), frame("b")], NOW)
    assert list(held(here)) == ["a", "b"]
    assert [bad.reason for bad in merged.bad] == ["stamp", "malformed"]
    assert here.rejections["stamp"] == here.rejections["malformed"] == 1


@pytest.mark.spec("F-01")
def test_a_card_eight_years_ahead_enters_nowhere_and_the_true_one_lives_on():
    here = registry()
    here.merge([frame("a")], NOW)
    here.merge([frame("a", stamp=NOW + 8 * 365 * 86400)], NOW)
    assert held(here) == {"a": NOW}
    here.merge([frame("a", stamp=NOW + 10)], NOW + 10)
    assert held(here, NOW + 10) == {"a": NOW + 10}


@pytest.mark.spec("F-01")
@pytest.mark.parametrize("stamp", [math.nan, math.inf, NOW + 3600])
def test_a_bad_stamp_on_an_otherwise_equal_card_is_refused(stamp):
    here = registry()
    here.merge([frame("a")], NOW)
    merged = here.merge([frame("a", stamp=stamp)], NOW)
    assert merged.bad
    assert held(here) == {"a": NOW}


@pytest.mark.spec("F-01")
def test_four_hundred_days_later_cards_are_still_judged_by_the_local_clock_only():
    here, later = registry(), NOW + 400 * 86400
    here.merge([frame("a")], NOW)
    here.merge([frame("a", stamp=later)], later)
    assert held(here, later) == {"a": later}


@pytest.mark.spec("F-02")
def test_our_own_id_is_never_taken_in():
    here = registry()
    merged = here.merge([frame("me", stamp=NOW + 9), frame("me", stamp=NOW + 4)], NOW)
    assert held(here) == {}
    assert merged.ours is not None
    assert merged.ours.announced_at_unix == NOW + 9


CARD_FIELDS = st.tuples(
    st.sampled_from("abc"), st.integers(-100, 30), st.sampled_from(["x", "y", "yy"])
)


@pytest.mark.spec("F-02")
@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.lists(CARD_FIELDS, max_size=12), st.randoms(use_true_random=False))
def test_no_order_grouping_or_repetition_changes_what_is_held(fields, rng):
    frames = [frame(i, stamp=NOW + age, platform=text) for i, age, text in fields]
    one, other = registry(), registry()
    one.merge(frames, NOW)
    again = frames * 2
    rng.shuffle(again)
    cut = rng.randint(0, len(again))
    other.merge(again[:cut], NOW)
    other.merge(again[cut:], NOW)
    other.merge([card.frame for card in one.live(NOW)], NOW)
    assert [c.frame for c in one.live(NOW)] == [c.frame for c in other.live(NOW)]


@pytest.mark.spec("F-02")
def test_the_same_stamp_with_two_contents_has_the_same_winner_in_both_orders():
    a, b = frame(platform="a"), frame(platform="b")
    one, other = registry(), registry()
    one.merge([a, b], NOW)
    other.merge([b, a], NOW)
    assert one.view(NOW, is_near=True) == other.view(NOW, is_near=True) == b


@pytest.mark.spec("F-03")
def test_a_relayed_card_is_the_received_one_byte_for_byte():
    raw = (
        b"\xa2\x06\x03new" + message("a", models=[{"model_id": "m", "role": 6}]).SerializeToString()
    )
    here = registry()
    here.merge([framed(raw)], NOW)
    assert here.view(NOW, is_near=True) == framed(raw)


@pytest.mark.spec("F-04")
def test_a_card_is_over_just_after_its_lifetime():
    here = registry()
    here.merge([frame("a")], NOW)
    assert held(here, NOW + 120) == {"a": NOW}
    assert held(here, NOW + 120.001) == {}
    assert here.view(NOW + 120.001, is_near=True) == b""


@pytest.mark.spec("F-04")
def test_an_expired_card_is_not_merged():
    here = registry()
    here.merge([frame("a", stamp=NOW - 120.5)], NOW)
    assert held(here) == {}
    assert here.rejections["expired"] == 1


@pytest.mark.spec("F-04")
def test_a_dropped_card_does_not_come_back_as_a_ghost():
    here, back = registry(), NOW
    here.merge([frame("a")], NOW)
    here.live(NOW + 121)
    # Our clock is set back, so the old card would look alive again.
    here.merge([frame("a"), frame("a", stamp=NOW - 1)], back)
    assert held(here, back) == {}
    assert here.rejections["ghost"] == 2
    here.merge([frame("a", stamp=NOW + 0.001)], NOW)
    assert held(here) == {"a": NOW + 0.001}


@pytest.mark.spec("F-04")
def test_a_dropped_stamp_is_remembered_for_the_longest_lifetime():
    here = registry()
    here.merge([frame("a")], NOW)
    here.live(NOW + 121)
    here.merge([frame("z", stamp=NOW + 3700, ttl_seconds=10.0)], NOW + 3700)
    assert here.dropped_stamp("a") == NOW
    here.live(NOW + 3722)
    assert here.dropped_stamp("a") is None


@pytest.mark.spec("F-04")
def test_cards_taken_while_our_clock_was_fast_do_not_keep_the_true_ones_out():
    here = registry()
    here.merge([frame("a", stamp=NOW + 3600)], NOW + 3600)
    assert held(here, NOW) == {}
    here.merge([frame("a")], NOW)
    assert held(here) == {"a": NOW}


@pytest.mark.spec("F-01")
def test_no_more_cards_are_held_than_a_message_may_have():
    here = registry(FleetLimits(max_cards=100))
    merged = here.merge(fleet_of(200), NOW)
    assert len(here) == 99  # and our own
    assert [bad.reason for bad in merged.bad] == ["full"] * 101
    # Those that are in go on being refreshed.
    here.merge(fleet_of(200, stamp=NOW + 5), NOW + 5)
    assert set(held(here, NOW + 5).values()) == {NOW + 5}


@pytest.mark.spec("F-01")
def test_a_view_stays_within_a_message_whatever_is_merged():
    here = registry()
    big = [frame(f"n{n}", models=[{"model_id": "m" * 500, "role": 2}] * 30) for n in range(400)]
    here.merge(big, NOW)
    view = here.view(NOW, is_near=True)
    assert len(view) == here.held_bytes <= LIMITS.max_view_bytes - LIMITS.max_card_bytes
    assert here.rejections["full"] > 0
    assert split(view, max_cards=LIMITS.max_cards).frames


@pytest.mark.spec("F-14")
def test_cards_with_loopback_addresses_stay_on_their_machine():
    here = registry()
    near, far = frame("a", grpc_address="127.0.0.1:1"), frame("b", models=[NGRAM])
    here.merge([near, far, frame("c", grpc_address="[::1]:1")], NOW)
    assert here.view(NOW, is_near=False) == far
    assert near in here.view(NOW, is_near=True)
