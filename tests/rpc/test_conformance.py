"""RFC 9113 case by case: what we answer to frames in states they may or may not come in."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from kakeya.rpc import frames, life
from kakeya.rpc.frames import (
    CONTINUATION,
    DATA,
    GOAWAY,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from kakeya.rpc.frames import END_HEADERS as EH
from kakeya.rpc.frames import END_STREAM as ES
from kakeya.rpc.headers import literal, request_head
from tests.rpc.peers import LIMITS, ask
from tests.rpc.raw import HELLO, REQUEST, call, data, frame, headers, message, raw_peer
from tests.spec_tables import table

CANCEL = (8).to_bytes(4, "big")
ONE = (1).to_bytes(4, "big")
ZERO = bytes(4)
HUGE = (0x7FFFFFFF).to_bytes(4, "big")
WAIT = message(ask("wait 50").SerializeToString())

OPEN_3 = headers(3)
HALF_CLOSED_3 = call(3, WAIT)
CLOSED_3 = call(3)
RESET_3 = headers(3) + frame(RST_STREAM, 0, 3, CANCEL)
PADDED_REQUEST = bytes((4,)) + REQUEST + bytes(4)
WITH_PRIORITY = bytes(5) + REQUEST


def swapped(old: bytes, new: bytes) -> bytes:
    assert old in REQUEST
    return REQUEST.replace(old, new)


def setting(key: int, value: int) -> bytes:
    return key.to_bytes(2, "big") + value.to_bytes(4, "big")


CONNECTION = "connection error "
STREAM = "stream error "
SERVED = "status 0"
# (name, what came before, the frames, the outcome of stream 3, then stream 5 is served or not)
CASES = [
    ("a plain call", b"", call(3), SERVED),
    ("a call in a padded HEADERS and padded DATA", b"",
     headers(3, PADDED_REQUEST, EH | PADDED) + data(3, b"\x03" + HELLO + bytes(3), ES | PADDED),
     SERVED),
    ("HEADERS with priority", b"", headers(3, WITH_PRIORITY, EH | 0x20) + data(3), SERVED),
    ("a header block in three pieces", b"",
     headers(3, REQUEST[:5], 0) + frame(CONTINUATION, 0, 3, REQUEST[5:9])
     + frame(CONTINUATION, EH, 3, REQUEST[9:]) + data(3), SERVED),
    ("an empty DATA before END_STREAM", b"",
     headers(3) + data(3, HELLO, 0) + data(3, b"", ES), SERVED),
    ("a message one byte a frame", b"",
     headers(3) + b"".join(data(3, HELLO[i : i + 1], 0) for i in range(len(HELLO)))
     + data(3, b"", ES), SERVED),
    ("trailers from the caller", b"",
     headers(3) + data(3, HELLO, 0) + headers(3, literal("x-a", "b"), EH | ES), SERVED),
    ("an unknown kind of frame", OPEN_3, frame(0xBE, 0xFF, 3, b"????") + data(3), SERVED),
    ("an unknown kind of frame on an idle stream", b"", frame(0xBE, 0, 9, b"?") + call(3), SERVED),
    ("PRIORITY on an idle stream", b"", frame(PRIORITY, 0, 9, bytes(5)) + call(3), SERVED),
    ("an unknown setting", b"", frame(SETTINGS, 0, 0, setting(0x99, 7)) + call(3), SERVED),
    ("DATA on an idle stream", b"", data(3), CONNECTION + "PROTOCOL_ERROR"),
    ("RST_STREAM on an idle stream", b"", frame(RST_STREAM, 0, 3, CANCEL),
     CONNECTION + "PROTOCOL_ERROR"),
    ("WINDOW_UPDATE on an idle stream", b"", frame(WINDOW_UPDATE, 0, 3, ONE),
     CONNECTION + "PROTOCOL_ERROR"),
    ("DATA on stream 0", b"", data(0), CONNECTION + "PROTOCOL_ERROR"),
    ("HEADERS on stream 0", b"", headers(0), CONNECTION + "PROTOCOL_ERROR"),
    ("RST_STREAM on stream 0", b"", frame(RST_STREAM, 0, 0, CANCEL), CONNECTION + "PROTOCOL_ERROR"),
    ("PRIORITY on stream 0", b"", frame(PRIORITY, 0, 0, bytes(5)), CONNECTION + "PROTOCOL_ERROR"),
    ("SETTINGS on a stream", b"", frame(SETTINGS, 0, 3), CONNECTION + "PROTOCOL_ERROR"),
    ("PING on a stream", b"", frame(PING, 0, 3, bytes(8)), CONNECTION + "PROTOCOL_ERROR"),
    ("GOAWAY on a stream", b"", frame(GOAWAY, 0, 3, bytes(8)), CONNECTION + "PROTOCOL_ERROR"),
    ("a stream with an even id", b"", headers(2), CONNECTION + "PROTOCOL_ERROR"),
    ("a stream id that goes back", call(7), call(3), CONNECTION + "PROTOCOL_ERROR"),
    ("PUSH_PROMISE from a client", OPEN_3, frame(PUSH_PROMISE, EH, 3, bytes(4) + REQUEST),
     CONNECTION + "PROTOCOL_ERROR"),
    ("CONTINUATION of nothing", b"", frame(CONTINUATION, EH, 3, REQUEST),
     CONNECTION + "PROTOCOL_ERROR"),
    ("a header block interrupted by PING", b"",
     headers(3, REQUEST[:5], 0) + frame(PING, 0, 0, bytes(8)), CONNECTION + "PROTOCOL_ERROR"),
    ("CONTINUATION on another stream", b"",
     headers(3, REQUEST[:5], 0) + frame(CONTINUATION, EH, 5, REQUEST[5:]),
     CONNECTION + "PROTOCOL_ERROR"),
    ("DATA on a half-closed stream", HALF_CLOSED_3, data(3), STREAM + "STREAM_CLOSED"),
    ("HEADERS on a half-closed stream", HALF_CLOSED_3, headers(3, literal("x-a", "b"), EH | ES),
     STREAM + "STREAM_CLOSED"),
    ("WINDOW_UPDATE on a half-closed stream", HALF_CLOSED_3, frame(WINDOW_UPDATE, 0, 3, ONE),
     "nothing"),
    ("DATA on a closed stream", CLOSED_3, data(3), CONNECTION + "STREAM_CLOSED"),
    ("HEADERS on a closed stream", CLOSED_3, headers(3), CONNECTION + "STREAM_CLOSED"),
    ("WINDOW_UPDATE on a closed stream", CLOSED_3, frame(WINDOW_UPDATE, 0, 3, ONE), SERVED),
    ("RST_STREAM on a closed stream", CLOSED_3, frame(RST_STREAM, 0, 3, CANCEL), SERVED),
    ("DATA on a stream the peer reset", RESET_3, data(3), STREAM + "STREAM_CLOSED"),
    ("RST_STREAM on a stream the peer reset", RESET_3, frame(RST_STREAM, 0, 3, CANCEL), "nothing"),
    ("a window update of 0 on a stream", OPEN_3, frame(WINDOW_UPDATE, 0, 3, ZERO),
     STREAM + "PROTOCOL_ERROR"),
    ("a window update of 0 on the connection", b"", frame(WINDOW_UPDATE, 0, 0, ZERO),
     CONNECTION + "PROTOCOL_ERROR"),
    ("a stream's window beyond 2^31-1", OPEN_3, frame(WINDOW_UPDATE, 0, 3, HUGE),
     STREAM + "FLOW_CONTROL_ERROR"),
    ("the connection's window beyond 2^31-1", b"", frame(WINDOW_UPDATE, 0, 0, HUGE),
     CONNECTION + "FLOW_CONTROL_ERROR"),
    ("an initial window beyond 2^31-1", b"", frame(SETTINGS, 0, 0, setting(4, 1 << 31)),
     CONNECTION + "FLOW_CONTROL_ERROR"),
    ("a frame size below 16,384", b"", frame(SETTINGS, 0, 0, setting(5, 16_383)),
     CONNECTION + "PROTOCOL_ERROR"),
    ("ENABLE_PUSH of 2", b"", frame(SETTINGS, 0, 0, setting(2, 2)), CONNECTION + "PROTOCOL_ERROR"),
    ("SETTINGS of 5 bytes", b"", frame(SETTINGS, 0, 0, bytes(5)), CONNECTION + "FRAME_SIZE_ERROR"),
    ("a SETTINGS ack with a payload", b"", frame(SETTINGS, 1, 0, bytes(6)),
     CONNECTION + "FRAME_SIZE_ERROR"),
    ("PING of 7 bytes", b"", frame(PING, 0, 0, bytes(7)), CONNECTION + "FRAME_SIZE_ERROR"),
    ("RST_STREAM of 3 bytes", OPEN_3, frame(RST_STREAM, 0, 3, bytes(3)),
     CONNECTION + "FRAME_SIZE_ERROR"),
    ("WINDOW_UPDATE of 3 bytes", b"", frame(WINDOW_UPDATE, 0, 0, bytes(3)),
     CONNECTION + "FRAME_SIZE_ERROR"),
    ("GOAWAY of 7 bytes", b"", frame(GOAWAY, 0, 0, bytes(7)), CONNECTION + "FRAME_SIZE_ERROR"),
    ("PRIORITY of 4 bytes", OPEN_3, frame(PRIORITY, 0, 3, bytes(4)), STREAM + "FRAME_SIZE_ERROR"),
    ("a frame beyond the limit", b"", frames.head(LIMITS.max_frame_bytes + 1, DATA, 0, 3),
     CONNECTION + "FRAME_SIZE_ERROR"),
    ("DATA with more padding than length", OPEN_3, data(3, b"\x09" + bytes(3), PADDED),
     CONNECTION + "PROTOCOL_ERROR"),
    ("HEADERS with more padding than length", b"", headers(3, b"\x09" + bytes(3), EH | PADDED),
     CONNECTION + "PROTOCOL_ERROR"),
    ("a header block that does not decode", b"", headers(3, b"\xff\xff\xff\xff\xff\xff\xff"),
     CONNECTION + "COMPRESSION_ERROR"),
    ("a header index that does not exist", b"", headers(3, b"\xc0"),
     CONNECTION + "COMPRESSION_ERROR"),
    ("header fields beyond the limit", b"",
     headers(3, literal("x-a", "b" * 4000) * 3 + literal("x-a", "b" * 4300)),
     CONNECTION + "COMPRESSION_ERROR"),
    ("an upper-case field name", b"", headers(3, REQUEST + literal("X-A", "b")),
     STREAM + "PROTOCOL_ERROR"),
    ("a connection-specific field", b"", headers(3, REQUEST + literal("connection", "close")),
     STREAM + "PROTOCOL_ERROR"),
    ("a line break in a field value", b"", headers(3, REQUEST + literal("x-a", "b\r\nc: d")),
     STREAM + "PROTOCOL_ERROR"),
    ("a pseudo-header after a regular field", b"", headers(3, literal("x-a", "b") + REQUEST),
     STREAM + "PROTOCOL_ERROR"),
    ("a request without :path", b"", headers(3, b"\x83\x86"), STREAM + "PROTOCOL_ERROR"),
    ("an unknown pseudo-header", b"", headers(3, literal(":odd", "1") + REQUEST),
     STREAM + "PROTOCOL_ERROR"),
    ("trailers without END_STREAM", headers(3) + data(3, HELLO, 0),
     headers(3, literal("x-a", "b")), STREAM + "PROTOCOL_ERROR"),
    ("a path of no method", b"", headers(3, request_head("/nope", "a", "http")) + data(3),
     "status 12"),
    ("a method nobody serves", b"", headers(3, request_head("/a.B/C", "a", "http")) + data(3),
     "status 12"),
    ("a compressed message", OPEN_3, data(3, message(b"zzz", 1)), "status 12"),
    ("a compressing encoding", b"", headers(3, REQUEST + literal("grpc-encoding", "gzip")),
     "status 12"),
    ("no te: trailers", b"", headers(3, swapped(literal("te", "trailers"), b"")) + data(3),
     "status 3"),
    ("a negative timeout", b"", headers(3, REQUEST + literal("grpc-timeout", "-5S")), "status 3"),
    ("a timeout of nine digits", b"", headers(3, REQUEST + literal("grpc-timeout", "999999999S")),
     "status 3"),
    ("the longest timeout", b"", headers(3, REQUEST + literal("grpc-timeout", "99999999H"))
     + data(3), SERVED),
    ("a timeout of nothing", b"", headers(3, REQUEST + literal("grpc-timeout", "0n"))
     + data(3, WAIT), "status 4"),
    ("an oversize prefix", OPEN_3, data(3, b"\x00\xff\xff\xff\xff", 0), "status 8"),
    ("two messages in a unary call", OPEN_3, data(3, HELLO + HELLO), "status 12"),
    ("no message at all", OPEN_3, data(3, b""), "status 3"),
    ("a message cut short", OPEN_3, data(3, HELLO[:-1]), "status 13"),
    ("a message that does not parse", OPEN_3, data(3, message(b"\xff\xff")), "status 3"),
    ("bad base64 in binary metadata", b"", headers(3, REQUEST + literal("x-a-bin", "!"))
     + data(3), "status 3"),
]  # fmt: skip


@pytest.mark.spec("R-01", "R-02", "R-03")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_a_frame_gets_the_outcome_that_rfc_9113_and_grpc_want(case, autojump_clock):
    _, before, sent, wanted = case
    async with raw_peer() as peer:
        if before:
            await peer.send(before)
        await peer.send(sent)
        assert peer.outcome(3) == wanted
        if not wanted.startswith(CONNECTION):
            # The connection lives: the next call is served.
            await peer.send(call(11))
            assert peer.status(11) == "0"
        await trio.sleep(60)
        assert peer.endpoint.held_bytes == 0
        assert peer.node.running == 0


@pytest.mark.spec("R-08")
async def test_data_beyond_a_streams_window_is_a_fault_of_that_stream(autojump_clock):
    limits = replace(LIMITS, stream_window_bytes=1000)
    async with raw_peer(limits) as peer:
        await peer.send(headers(3), data(3, bytes(3), 0), data(3, bytes(998), 0))
        assert peer.outcome(3) == STREAM + "FLOW_CONTROL_ERROR"
        await peer.send(call(5))
        assert peer.status(5) == "0"


@pytest.mark.spec("R-08")
async def test_a_granted_message_may_be_larger_than_the_window(autojump_clock):
    limits = replace(LIMITS, stream_window_bytes=1000)
    async with raw_peer(limits) as peer:
        whole = message(ask("x" * 5000).SerializeToString())
        await peer.send(headers(3), data(3, whole[:900], 0))
        granted = [e for e in peer.seen(WINDOW_UPDATE) if e.stream_id == 3]
        assert sum(e.code for e in granted) + 100 >= len(whole) - 900
        await peer.send(data(3, whole[900:]))
        assert peer.status(3) == "0"


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", frames.PREFACE + call(1)])
async def test_a_peer_that_does_not_greet_is_let_go(greeting, autojump_clock):
    async with raw_peer(greeting=greeting) as peer:
        await trio.sleep(0.1)
        assert peer.outcome(1) == CONNECTION + "PROTOCOL_ERROR"


async def test_the_window_that_settings_change_in_mid_stream_counts(autojump_clock):
    async with raw_peer() as peer:
        await peer.send(frame(SETTINGS, 0, 0, setting(4, 0)))
        await peer.send(call(3))
        assert peer.status(3) is None
        await peer.send(frame(SETTINGS, 0, 0, setting(4, 3)))
        assert sum(len(e.payload) for e in peer.seen(DATA)) == 3
        await peer.send(frame(SETTINGS, 0, 0, setting(4, 65_535)))
        assert peer.status(3) == "0"


@pytest.mark.spec("R-01")
def test_the_table_of_stream_life_is_the_specs():
    rows = table("rpc.md", "state", "event", "outcome")
    assert {(state, event): outcome for state, event, outcome in rows} == life.TABLE


@pytest.mark.spec("R-01")
def test_every_frame_a_peer_may_send_has_an_outcome_in_every_state():
    events = {event for _, event in life.TABLE if event.startswith("recv") and "END" not in event}
    states = {state for state, _ in life.TABLE}
    assert {(s, e) for s in states for e in events} <= set(life.TABLE)
