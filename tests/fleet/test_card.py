"""What is read from a card, and which cards are not taken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.fleet.card import Card, Model, beats, decode, encode, restamped
from kakeya.fleet.frames import framed
from tests.fleet.cards import LIMITS, NGRAM, NOW, card, frame, message, reason


def test_a_card_is_read_whole():
    read = card(mlx_version="0.31", ring_address="10.0.0.2:9999")
    assert read.node_id == "attic"
    assert read.offer.memory_bytes == 16 << 30
    assert read.offer.models == (Model("ngram", 2, "none", 1234.5),)
    assert (read.offer.mlx_version, read.offer.ring_address) == ("0.31", "10.0.0.2:9999")
    assert read.expires_at_unix == NOW + 120


BAD = [
    (frame(""), "node_id"),
    (frame("x" * 129), "node_id"),
    (frame("ž" * 65), "node_id"),
    (frame("x" * (1 << 20)), "size"),
    (frame(stamp=math.nan), "stamp"),
    (frame(stamp=math.inf), "stamp"),
    (frame(stamp=-math.inf), "stamp"),
    (frame(stamp=NOW + 30.5), "future"),
    (frame(stamp=NOW + 8 * 365 * 86400), "future"),
    (frame(stamp=4_102_444_800.0), "future"),
    (frame(ttl_seconds=0.0), "ttl"),
    (frame(ttl_seconds=-1.0), "ttl"),
    (frame(ttl_seconds=1e12), "ttl"),
    (frame(ttl_seconds=1e308), "ttl"),
    (frame(ttl_seconds=math.nan), "ttl"),
    (frame(models=[{"model_id": "m", "role": 2}] * 65), "models"),
    (frame(models=[{"model_id": "m", "role": 2}] * 4000), "size"),
    (frame(platform="p" * 513), "text"),
    (frame(models=[{"model_id": "m" * 513, "role": 2}]), "text"),
    (framed(b"\xff\xff\xff"), "malformed"),
    (framed(b"\x0a\x02\xff\xfe"), "malformed"),
    (framed(b""), "node_id"),
]


@pytest.mark.spec("F-01")
@pytest.mark.parametrize(("bad", "why"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_a_bad_card_is_not_taken(bad, why):
    assert reason(bad) == why


@pytest.mark.spec("F-01")
def test_cards_at_the_bounds_are_taken():
    assert reason(frame("x" * 128)) == ""
    assert reason(frame(stamp=NOW + 30)) == ""
    assert reason(frame(ttl_seconds=3600.0)) == ""
    assert reason(frame(models=[{"model_id": "m", "role": 2}] * 64)) == ""
    assert reason(frame(platform="p" * 512)) == ""


@pytest.mark.spec("F-01")
@pytest.mark.parametrize("speed", [math.nan, math.inf, -math.inf, -1.0])
def test_a_throughput_that_is_no_measure_reads_as_unmeasured(speed):
    read = card(models=[{**NGRAM, "tokens_per_second": speed}])
    assert read.offer.models[0].tokens_per_second == 0.0


@pytest.mark.spec("F-03")
def test_unknown_roles_and_fields_survive_byte_for_byte():
    # Field 100 before the known ones, where no writer of ours would put it, and role 99.
    raw = b"\xa2\x06\x03new" + message(models=[{"model_id": "m", "role": 99}]).SerializeToString()
    read = decode(framed(raw), now_unix=NOW, limits=LIMITS)
    assert isinstance(read, Card)
    assert read.frame == framed(raw)
    assert read.offer.models[0].role == 99


@pytest.mark.spec("F-03")
@pytest.mark.parametrize("role", [0, 3, 4, 5, 6, 99, 2**31 - 1])
def test_our_own_card_may_carry_any_role(role):
    offer = card(models=[{"model_id": "m", "role": role}]).offer
    again = decode(encode(offer, NOW), now_unix=NOW, limits=LIMITS)
    assert isinstance(again, Card)
    assert again.offer == offer


@pytest.mark.spec("F-13")
def test_a_card_that_differs_in_its_stamp_alone_is_not_decoded():
    held = card()
    newer = restamped(held, frame(stamp=NOW + 7))
    assert newer is not None
    assert newer.offer is held.offer
    assert newer.announced_at_unix == NOW + 7
    assert newer.frame == frame(stamp=NOW + 7)
    assert restamped(held, frame(stamp=NOW + 7, platform="linux-arm")) is None
    assert restamped(held, frame("cellar", stamp=NOW + 7)) is None


@pytest.mark.spec("F-13")
def test_a_stamp_that_occurs_twice_in_a_card_is_decoded():
    twice = framed(message().SerializeToString() + message().SerializeToString())
    held = decode(twice, now_unix=NOW, limits=LIMITS)
    assert isinstance(held, Card)
    assert restamped(held, twice) is None


@pytest.mark.spec("F-02")
def test_of_equal_stamps_the_larger_bytes_win_whatever_their_order():
    a, b = card(platform="a"), card(platform="b")
    assert beats(b, a)
    assert not beats(a, b)
    assert not beats(a, a)


@pytest.mark.spec("F-02")
def test_the_order_of_fields_does_not_decide_a_tie():
    plain = message(platform="a").SerializeToString()
    shuffled = plain[7:] + plain[:7]  # node_id last
    other = card(platform="b")
    moved = decode(framed(shuffled), now_unix=NOW, limits=LIMITS)
    assert isinstance(moved, Card)
    assert moved.node_id == "attic"
    assert beats(other, moved)


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(raw):
    read = decode(framed(raw), now_unix=NOW, limits=LIMITS)
    assert isinstance(read, Card) or read.reason
