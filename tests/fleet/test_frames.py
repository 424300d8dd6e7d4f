"""How a view is cut into frames and joined again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.fleet.frames import body_of, framed, peeked_id, split
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.fleet.cards import DFLASH, NGRAM, SMOLLM2, frame, message


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.lists(st.binary(max_size=400), max_size=20))
def test_a_view_is_cut_where_it_was_joined(bodies):
    frames = [framed(body) for body in bodies]
    parts = split(b"".join(frames), max_cards=100)
    assert list(parts.frames) == frames
    assert [body_of(f) for f in parts.frames] == bodies
    assert not parts.is_broken
    assert not parts.has_more


def test_frames_are_what_protobuf_writes():
    cards = [message("attic"), message("cellar", models=(NGRAM, SMOLLM2, DFLASH))]
    view = pb.ExchangeCapabilitiesRequest(known_nodes=cards).SerializeToString()
    parts = split(view, max_cards=10)
    assert [pb.NodeCapability.FromString(body_of(f)) for f in parts.frames] == cards
    assert b"".join(parts.frames) == view
    assert [peeked_id(f) for f in parts.frames] == [b"attic", b"cellar"]


@pytest.mark.spec("F-01")
def test_frames_beyond_the_limit_are_cut_off_and_said_so():
    parts = split(frame() * 5, max_cards=4)
    assert len(parts.frames) == 4
    assert parts.has_more


def test_other_fields_of_the_message_are_passed_over():
    fields = b"\x10\x05" + b"\x19" + bytes(8) + b"\xa2\x06\x02hi" + b"\x25" + bytes(4)
    parts = split(fields + frame() + fields, max_cards=4)
    assert list(parts.frames) == [frame()]
    assert not parts.is_broken


@pytest.mark.parametrize(
    "broken",
    [
        frame()[:-1],
        b"\x0a",
        b"\x0a\xff",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0b",
        b"\x19\x00",
        b"\xa2\x06\x09hi",
        b"PRI * HTTP/2.0",
    ],
)
def test_what_is_no_view_is_told(broken):
    assert split(broken, max_cards=4).is_broken


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.binary(max_size=300))
def test_no_bytes_break_the_cutter(view):
    parts = split(view, max_cards=8)
    for part in parts.frames:
        body_of(part)
        peeked_id(part)
