"""What the RPC layer asks of messages: their bytes, and how bytes are read back.

protobuf copies a message whole, in and out, and nothing else runs on the loop meanwhile.  A message
with much to carry may go in pieces instead: it has `buffers()`, its bytes in their order over
memory that stays as it is; and coming, a reader for its type is given to endpoint and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview
# Makes a message of its bytes and may keep views of them.  Raises DecodeError, or Refused.
Reader = Callable[[memoryview], Any]
Readers = Mapping[type, Reader]


@dataclass(frozen=True, slots=True)
class Form:
    """How messages of one type come in: the memory they are gathered in, and what reads them."""

    memory: Callable[[int], Buffer]
    read: Callable[[Buffer], Any]


def form_of(message_type: Any, readers: Readers) -> Form:
    """The form of a type that purerpc's signatures name; `readers` come before its own parser."""
    reader = readers.get(message_type)
    if reader is None:
        # protobuf's parser would copy any other kind of memory first.
        return Form(bytearray, partial(_parsed, message_type))
    return Form(untouched, partial(_viewed, reader))


def untouched(num_bytes: int) -> memoryview:
    """Memory with anything in it: clearing 64 MB takes 40 ms in one go, most of it page faults."""
    return np.empty(num_bytes, np.uint8).data


def buffers_of(message: Any) -> Sequence[Buffer]:
    """A message's bytes in order."""
    in_pieces = getattr(message, "buffers", None)
    if in_pieces is None:
        return (message.SerializeToString(),)
    buffers: Sequence[Buffer] = in_pieces()
    return buffers


def size_of(buffers: Sequence[Buffer]) -> int:
    return sum(map(len, buffers))


def _parsed(message_type: Any, payload: Buffer) -> Any:
    message = message_type()
    message.ParseFromString(payload)
    return message


def _viewed(reader: Reader, payload: Buffer) -> Any:
    return reader(memoryview(payload).toreadonly())
