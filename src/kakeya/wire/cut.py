"""Cuts large bytes out of a message without copying them; what is left is small.

The rest is a message like any other, for protobuf's own parser to judge: where bytes were cut, it
holds the number of the cut.  protobuf copies whatever it parses, and nothing else runs meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from kakeya.config.wire import WireLimits
from kakeya.errors import demand


@dataclass(frozen=True, slots=True)
class Plan:
    """Which fields of a message are cut out, and the fields whose messages are cut in turn."""

    cut: frozenset[int] = frozenset()
    within: Mapping[int, Plan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cut:
    """A message without its large bytes, and those: views of the message's memory."""

    rest: bytes
    pieces: Sequence[memoryview]


_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_MARK = struct.Struct("<I")
_MAX_VARINT_BYTES = 10


def cut(message: memoryview, plan: Plan, *, limits: WireLimits) -> Cut:
    """The parts of a message; a bytes field that was cut holds mark_of() a piece in the rest.

    Refuses, beyond what protobuf does, groups and tags or lengths written longer than they need
    be.  Raises DecodeError, or Refused(RESOURCE_EXHAUSTED) for too many fields or a large rest.
    """
    knife = _Knife(message, limits)
    rest = bytearray()
    knife.cut(0, len(message), plan, rest)
    return Cut(bytes(rest), knife.pieces)


def piece_at(found: Cut, mark: bytes) -> memoryview:
    """The bytes that a field of the parsed rest stands for; none for an empty field."""
    return found.pieces[_MARK.unpack(mark)[0]] if mark else memoryview(b"")


def varint(value: int) -> bytes:
    """`value` ≥ 0 as a base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Knife:
    """One walk over one message."""

    def __init__(self, message: memoryview, limits: WireLimits) -> None:
        self.pieces: list[memoryview] = []
        self._message = message
        self._limits = limits
        self._num_fields = 0
        self._rest_bytes = 0

    def cut(self, at: int, end: int, plan: Plan, rest: bytearray) -> None:
        """Add what is left of the message at [at, end) to `rest`."""
        message = self._message
        while at < end:
            start = at
            self._count_field()
            key, at = self._number(at, end)
            if key & 7 != _LEN:
                stop = self._after_scalar(key & 7, at, end)
                self._keep(message[start:stop], rest)
                at = stop
                continue
            value = at
            length, at = self._number(at, end)
            stop, number = at + length, key >> 3
            if stop > end:
                raise DecodeError("a field ends behind its message")
            if number in plan.cut:
                self._keep(message[start:value], rest)
                rest += b"\x04" + _MARK.pack(len(self.pieces))
                self.pieces.append(message[at:stop])
            elif number in plan.within:
                inner = bytearray()
                self.cut(at, stop, plan.within[number], inner)
                self._keep(message[start:value], rest)
                rest += varint(len(inner)) + inner
            else:
                self._keep(message[start:stop], rest)
            at = stop

    def _count_field(self) -> None:
        self._num_fields += 1
        limit = self._limits.max_bulk_fields
        if self._num_fields > limit:
            demand(False, "RESOURCE_EXHAUSTED", f"more than {limit} fields, which is the limit")

    def _keep(self, view: memoryview, rest: bytearray) -> None:
        self._rest_bytes += len(view)
        limit = self._limits.max_bulk_rest_bytes
        if self._rest_bytes > limit:
            why = f"more than {limit} bytes beside the tensors' data, which is the limit"
            demand(False, "RESOURCE_EXHAUSTED", why)
        rest += view

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """A tag or a length (32 bits, in as few bytes as it takes) and where it ends."""
        message, value, shift = self._message, 0, 0
        while at < end and shift < 35:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if (not byte and shift) or value >> 32:
                    break
                return value, at
            shift += 7
        raise DecodeError("no tag or length")

    def _after_scalar(self, kind: int, at: int, end: int) -> int:
        if kind == _VARINT:
            last = min(end, at + _MAX_VARINT_BYTES)
            while at < last and self._message[at] >= 0x80:
                at += 1
            stop = at + 1
        elif kind in (_I64, _I32):
            stop = at + (8 if kind == _I64 else 4)
        else:
            raise DecodeError("a group, which proto3 has not")
        if stop > end:
            raise DecodeError("a field ends behind its message")
        return stop
