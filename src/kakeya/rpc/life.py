"""The life of one HTTP/2 stream (RFC 9113, section 5.1) as one literal table.

`specs/rpc.md` carries the same table; a test compares the two.  There are three kinds of closed:
ended by both sides, reset by us (late frames are ignored), reset by the peer.
"""

from __future__ import annotations

from typing import Final

from kakeya.rpc.frames import PROTOCOL_ERROR, STREAM_CLOSED, ConnectionFault, StreamFault

IDLE: Final = "idle"
OPEN: Final = "open"
HALF_CLOSED_LOCAL: Final = "half-closed (local)"
HALF_CLOSED_REMOTE: Final = "half-closed (remote)"
CLOSED: Final = "closed"
RESET_LOCAL: Final = "reset by us"
RESET_REMOTE: Final = "reset by the peer"

RECV_HEADERS: Final = "recv HEADERS"
RECV_DATA: Final = "recv DATA"
RECV_END: Final = "recv END_STREAM"
RECV_RST: Final = "recv RST_STREAM"
RECV_WINDOW: Final = "recv WINDOW_UPDATE"
RECV_PRIORITY: Final = "recv PRIORITY"
SEND_HEADERS: Final = "send HEADERS"
SEND_DATA: Final = "send DATA"
SEND_END: Final = "send END_STREAM"
SEND_RST: Final = "send RST_STREAM"

# Not a next state but what becomes of the frame.
IGNORE: Final = "ignore"
STREAM_ERROR: Final = "stream error STREAM_CLOSED"
CONNECTION_ERROR: Final = "connection error PROTOCOL_ERROR"
CONNECTION_CLOSED_ERROR: Final = "connection error STREAM_CLOSED"

TABLE: Final[dict[tuple[str, str], str]] = {
    (IDLE, RECV_HEADERS): OPEN,
    (IDLE, RECV_DATA): CONNECTION_ERROR,
    (IDLE, RECV_RST): CONNECTION_ERROR,
    (IDLE, RECV_WINDOW): CONNECTION_ERROR,
    (IDLE, RECV_PRIORITY): IGNORE,
    (IDLE, SEND_HEADERS): OPEN,
    (OPEN, RECV_HEADERS): OPEN,
    (OPEN, RECV_DATA): OPEN,
    (OPEN, RECV_END): HALF_CLOSED_REMOTE,
    (OPEN, RECV_RST): RESET_REMOTE,
    (OPEN, RECV_WINDOW): OPEN,
    (OPEN, RECV_PRIORITY): IGNORE,
    (OPEN, SEND_HEADERS): OPEN,
    (OPEN, SEND_DATA): OPEN,
    (OPEN, SEND_END): HALF_CLOSED_LOCAL,
    (OPEN, SEND_RST): RESET_LOCAL,
    (HALF_CLOSED_LOCAL, RECV_HEADERS): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RECV_DATA): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RECV_END): CLOSED,
    (HALF_CLOSED_LOCAL, RECV_RST): RESET_REMOTE,
    (HALF_CLOSED_LOCAL, RECV_WINDOW): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, RECV_PRIORITY): IGNORE,
    (HALF_CLOSED_LOCAL, SEND_RST): RESET_LOCAL,
    (HALF_CLOSED_REMOTE, RECV_HEADERS): STREAM_ERROR,
    (HALF_CLOSED_REMOTE, RECV_DATA): STREAM_ERROR,
    (HALF_CLOSED_REMOTE, RECV_RST): RESET_REMOTE,
    (HALF_CLOSED_REMOTE, RECV_WINDOW): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, RECV_PRIORITY): IGNORE,
    (HALF_CLOSED_REMOTE, SEND_HEADERS): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, SEND_DATA): HALF_CLOSED_REMOTE,
    (HALF_CLOSED_REMOTE, SEND_END): CLOSED,
    (HALF_CLOSED_REMOTE, SEND_RST): RESET_LOCAL,
    (CLOSED, RECV_HEADERS): CONNECTION_CLOSED_ERROR,
    (CLOSED, RECV_DATA): CONNECTION_CLOSED_ERROR,
    (CLOSED, RECV_RST): IGNORE,
    (CLOSED, RECV_WINDOW): IGNORE,
    (CLOSED, RECV_PRIORITY): IGNORE,
    (RESET_LOCAL, RECV_HEADERS): IGNORE,
    (RESET_LOCAL, RECV_DATA): IGNORE,
    (RESET_LOCAL, RECV_RST): IGNORE,
    (RESET_LOCAL, RECV_WINDOW): IGNORE,
    (RESET_LOCAL, RECV_PRIORITY): IGNORE,
    (RESET_REMOTE, RECV_HEADERS): STREAM_ERROR,
    (RESET_REMOTE, RECV_DATA): STREAM_ERROR,
    (RESET_REMOTE, RECV_RST): IGNORE,
    (RESET_REMOTE, RECV_WINDOW): IGNORE,
    (RESET_REMOTE, RECV_PRIORITY): IGNORE,
}

ENDED: Final = frozenset({CLOSED, RESET_LOCAL, RESET_REMOTE})
# The peer may still send in these.
PEER_SENDS: Final = frozenset({OPEN, HALF_CLOSED_LOCAL})
# We may still send in these.
WE_SEND: Final = frozenset({OPEN, HALF_CLOSED_REMOTE})


def step(state: str, event: str) -> str:
    """The next state, or IGNORE.  Raises StreamFault or ConnectionFault as the table says.

    A pair that is not in the table is our own mistake (only `send` events are missing).
    """
    outcome = TABLE[state, event]
    if outcome is STREAM_ERROR:
        raise StreamFault(STREAM_CLOSED, f"{event[5:]} on a stream that is {state}")
    if outcome is CONNECTION_ERROR:
        raise ConnectionFault(PROTOCOL_ERROR, f"{event[5:]} on a stream that is {state}")
    if outcome is CONNECTION_CLOSED_ERROR:
        raise ConnectionFault(STREAM_CLOSED, f"{event[5:]} on a stream that is {state}")
    return outcome
