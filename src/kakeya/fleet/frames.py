"""A view as bytes: what it takes to cut cards out of it and to put it together, undecoded.

A card travels as a *frame*: the bytes it has inside a view (field tag, length, message).  All
messages that carry cards have them in field 1.  Knows nothing of what a card says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FRAME_TAG = 0x0A  # field 1, length-delimited: `known_nodes` and `node` alike


def framed(raw: bytes) -> bytes:
    """`raw` as field 1 of a view."""
    length, varint = len(raw), bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return bytes((FRAME_TAG,)) + bytes(varint) + raw


def body_of(frame: bytes) -> bytes:
    """The card's own bytes, without tag and length."""
    at = 1
    while frame[at] & 0x80:
        at += 1
    return frame[at + 1 :]


def peeked_id(frame: bytes) -> bytes:
    """The node_id's bytes when they stand where writers put them, else b"".  Not validated."""
    at = 2 if frame[1] < 0x80 else 3
    if len(frame) < at + 2 or frame[at] != 0x0A or frame[at + 1] > 0x7F:
        return b""
    return frame[at + 2 : at + 2 + frame[at + 1]]


@dataclass(frozen=True, slots=True)
class Split:
    """The frames of a view; `has_more` when the limit cut some off, `is_broken` when not a view."""

    frames: Sequence[bytes]
    has_more: bool
    is_broken: bool


def split(view: bytes, *, max_cards: int) -> Split:
    """Cut a view into frames without decoding them; other fields of the message are dropped."""
    frames: list[bytes] = []
    at, end = 0, len(view)
    try:
        while at < end:
            start = at
            if view[at] != FRAME_TAG:
                at = _after_field(view, at)
                continue
            length, at = _varint(view, at + 1)
            at += length
            if at > end:
                return Split(frames, False, True)
            if len(frames) == max_cards:
                return Split(frames, True, False)
            frames.append(view[start:at])
    except IndexError:
        return Split(frames, False, True)
    return Split(frames, False, at > end)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The value at `at` and where it ends.  Raises IndexError when it has no end."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while shift < 64:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise IndexError


def _after_field(data: bytes, at: int) -> int:
    """Where the field at `at` ends.  Raises IndexError when it has no end."""
    key, at = _varint(data, at)
    match key & 7:
        case 0:
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(data, at)
            return at + length
        case 5:
            return at + 4
    raise IndexError  # groups are no part of proto3
