"""HTTP/2 frames as bytes (RFC 9113, section 6): numbers, packers, parsers, the two faults.

Knows nothing of streams, calls or sockets.
"""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
MAX_WINDOW: Final = (1 << 31) - 1
MAX_STREAM_ID: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME_BYTES: Final = 16_384

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x01
ACK: Final = 0x01
END_HEADERS: Final = 0x04
PADDED: Final = 0x08
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
INTERNAL_ERROR: Final = 2
FLOW_CONTROL_ERROR: Final = 3
SETTINGS_TIMEOUT: Final = 4
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

ERROR_NAMES: Final = {
    NO_ERROR: "NO_ERROR",
    PROTOCOL_ERROR: "PROTOCOL_ERROR",
    INTERNAL_ERROR: "INTERNAL_ERROR",
    FLOW_CONTROL_ERROR: "FLOW_CONTROL_ERROR",
    SETTINGS_TIMEOUT: "SETTINGS_TIMEOUT",
    STREAM_CLOSED: "STREAM_CLOSED",
    FRAME_SIZE_ERROR: "FRAME_SIZE_ERROR",
    REFUSED_STREAM: "REFUSED_STREAM",
    CANCEL: "CANCEL",
    COMPRESSION_ERROR: "COMPRESSION_ERROR",
    ENHANCE_YOUR_CALM: "ENHANCE_YOUR_CALM",
}

# SETTINGS identifiers.
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_HEAD = struct.Struct(">IBI")
_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_TWO_U32 = struct.Struct(">II")


class ConnectionFault(Exception):  # noqa: N818 - RFC 9113 calls it a connection error
    """The peer broke the protocol: GOAWAY with `code`, and the connection ends."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(ERROR_NAMES.get(code, str(code)), why)
        self.code = code
        self.why = why


class StreamFault(Exception):  # noqa: N818 - RFC 9113 calls it a stream error
    """One stream broke the protocol: RST_STREAM with `code`; the connection lives."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(ERROR_NAMES.get(code, str(code)), why)
        self.code = code
        self.why = why


def head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a frame's payload."""
    return _HEAD.pack(length << 8 | kind, flags, stream_id)


def parse_head(view: memoryview, at: int) -> tuple[int, int, int, int]:
    """(length, kind, flags, stream id) of the frame that starts at byte `at`."""
    length_and_kind, flags, stream_id = _HEAD.unpack_from(view, at)
    return length_and_kind >> 8, length_and_kind & 0xFF, flags, stream_id & MAX_STREAM_ID


def settings(values: dict[int, int]) -> bytes:
    payload = b"".join(_SETTING.pack(key, value) for key, value in values.items())
    return head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = head(0, SETTINGS, ACK, 0)


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """The (identifier, value) pairs in their order.  Raises ConnectionFault."""
    if len(payload) % 6:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    pairs = list(_SETTING.iter_unpack(payload))
    for key, value in pairs:
        if key == ENABLE_PUSH and value > 1:
            raise ConnectionFault(PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if key == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        if key == MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value < 1 << 24:
            raise ConnectionFault(PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
    return pairs


def window_update(stream_id: int, num_bytes: int) -> bytes:
    return head(4, WINDOW_UPDATE, 0, stream_id) + _U32.pack(num_bytes)


def reset(stream_id: int, code: int) -> bytes:
    return head(4, RST_STREAM, 0, stream_id) + _U32.pack(code)


def ping(payload: bytes, *, is_ack: bool = False) -> bytes:
    return head(8, PING, ACK if is_ack else 0, 0) + payload


def goaway(last_stream_id: int, code: int) -> bytes:
    return head(8, GOAWAY, 0, 0) + _TWO_U32.pack(last_stream_id, code)


def parse_u32(payload: bytes) -> int:
    """The single 32-bit number that RST_STREAM and WINDOW_UPDATE carry."""
    if len(payload) != 4:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, it must be 4")
    return int(_U32.unpack(payload)[0])


def parse_goaway(payload: bytes) -> tuple[int, int]:
    """(last stream id that was or may be served, error code)."""
    if len(payload) < 8:
        raise ConnectionFault(FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
    last, code = _TWO_U32.unpack_from(payload)
    return last & MAX_STREAM_ID, code


def header_fragment(payload: bytes, flags: int) -> bytes:
    """The part of a header block in a HEADERS frame, without padding and priority."""
    start, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(FRAME_SIZE_ERROR, "padded HEADERS without a pad length")
        start, end = 1, end - payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start > end:
        raise ConnectionFault(PROTOCOL_ERROR, "HEADERS whose padding is longer than its payload")
    return payload[start:end]
