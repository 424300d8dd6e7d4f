"""Cuts what a peer sends into frames (RFC 9113, section 4) and hands them on.

DATA is passed on as it arrives, never gathered; any other frame is gathered whole, with a small
bound.  Knows nothing of streams' states.
"""

from __future__ import annotations

import math
from typing import Protocol

from kakeya.config.rpc import RpcLimits
from kakeya.rpc import frames
from kakeya.rpc.frames import ConnectionFault
from kakeya.rpc.stream import Stream

_MAX_GATHERED_BYTES = 16_384
# A header block in more pieces than this is an attack, however small they are.
_MAX_FRAGMENTS = 64


class Receiver(Protocol):
    """What the frames are handed to.  Every method may raise ConnectionFault."""

    def data_begins(self, stream_id: int, length: int, flags: int) -> Stream | None:
        """A DATA frame of `length` bytes, padding included; None: its bytes are thrown away."""
        ...

    def data(self, stream: Stream, view: memoryview) -> None: ...

    def data_ends(self, stream: Stream | None, length: int, flags: int) -> None: ...

    def headers(self, stream_id: int, block: bytes, has_ended: bool) -> None: ...

    def control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None: ...

    def unknown(self) -> None:
        """A frame of a kind nobody knows; it is skipped."""
        ...


class Intake:
    """The parser of one connection; `preface` is what the peer must say first."""

    def __init__(self, receiver: Receiver, limits: RpcLimits, preface: bytes) -> None:
        self._receiver = receiver
        self._limits = limits
        self._preface_left = preface
        self._pending = b""
        self._data_left = 0
        self._pad_left = 0
        self._skip_left = 0
        self._data_length = 0
        self._data_flags = 0
        self._stream: Stream | None = None
        self._block: bytearray | None = None
        self._block_stream_id = 0
        self._block_has_ended = False
        self._num_fragments = 0
        # When the frame or header block that is not whole yet began, or inf (s).
        self.unfinished_since = math.inf

    def feed(self, view: memoryview, now: float) -> None:
        """Take the next bytes; keeps none of `view`.  Raises ConnectionFault."""
        if self._pending:
            view = memoryview(self._pending + bytes(view))
            self._pending = b""
        if self._preface_left:
            view = self._check_preface(view)
        at, end = 0, len(view)
        while at < end:
            if self._data_left or self._pad_left or self._skip_left:
                at += self._pass_on(view[at:end])
                continue
            used = self._frame(view, at, end)
            if not used:
                self._pending = bytes(view[at:end])
                break
            at += used
        if not self._pending and self._block is None:
            self.unfinished_since = math.inf
        elif self.unfinished_since == math.inf:
            self.unfinished_since = now

    def _check_preface(self, view: memoryview) -> memoryview:
        size = min(len(view), len(self._preface_left))
        if view[:size] != self._preface_left[:size]:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "the peer does not speak HTTP/2")
        self._preface_left = self._preface_left[size:]
        return view[size:]

    def _frame(self, view: memoryview, at: int, end: int) -> int:
        """Handle the frame at `at`; returns the bytes used, 0 when more are needed."""
        if end - at < frames.HEAD_BYTES:
            return 0
        length, kind, flags, stream_id = frames.parse_head(view, at)
        if length > self._limits.max_frame_bytes:
            raise ConnectionFault(frames.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "a header block was interrupted")
        if kind == frames.DATA:
            return self._begin_data(view, at, end, length=length, flags=flags, stream_id=stream_id)
        if kind > frames.CONTINUATION:
            self._receiver.unknown()
            self._skip_left = length
            return frames.HEAD_BYTES
        if length > _MAX_GATHERED_BYTES:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, f"a control frame of {length} bytes")
        stop = at + frames.HEAD_BYTES + length
        if stop > end:
            return 0
        payload = bytes(view[at + frames.HEAD_BYTES : stop])
        if kind == frames.HEADERS:
            self._begin_block(stream_id, flags, payload)
        elif kind == frames.CONTINUATION:
            self._continue_block(stream_id, flags, payload)
        else:
            self._receiver.control(kind, flags, stream_id, payload)
        return frames.HEAD_BYTES + length

    def _begin_data(
        self, view: memoryview, at: int, end: int, *, length: int, flags: int, stream_id: int
    ) -> int:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA on stream 0")
        used, pad = frames.HEAD_BYTES, 0
        if flags & frames.PADDED:
            if length == 0:
                raise ConnectionFault(frames.FRAME_SIZE_ERROR, "padded DATA without a pad length")
            if end - at <= used:
                return 0
            pad = view[at + used]
            used += 1
            if pad >= length:
                raise ConnectionFault(frames.PROTOCOL_ERROR, "DATA with more padding than length")
        self._stream = self._receiver.data_begins(stream_id, length, flags)
        self._data_length, self._data_flags = length, flags
        self._data_left = length - pad - (used - frames.HEAD_BYTES)
        self._pad_left = pad
        if not self._data_left and not pad:
            self._end_data()
        return used

    def _pass_on(self, view: memoryview) -> int:
        """Use up bytes of a payload that is not gathered."""
        if self._skip_left:
            used = min(self._skip_left, len(view))
            self._skip_left -= used
            return used
        if self._data_left:
            used = min(self._data_left, len(view))
            if self._stream is not None:
                self._receiver.data(self._stream, view[:used])
            self._data_left -= used
        else:
            used = min(self._pad_left, len(view))
            self._pad_left -= used
        if not self._data_left and not self._pad_left:
            self._end_data()
        return used

    def _end_data(self) -> None:
        stream, self._stream = self._stream, None
        self._receiver.data_ends(stream, self._data_length, self._data_flags)

    def direct(self) -> memoryview | None:
        """Memory of a message that the very next bytes of the connection belong into."""
        if self._data_left and self._stream is not None:
            room = self._stream.room()
            if room is not None:
                return room[: self._data_left]
        return None

    def placed(self, num_bytes: int) -> None:
        """That many bytes were read into direct()."""
        assert self._stream is not None
        self._stream.filled(num_bytes)
        self._data_left -= num_bytes
        if not self._data_left and not self._pad_left:
            self._end_data()

    def _begin_block(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id == 0:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "HEADERS on stream 0")
        fragment = frames.header_fragment(payload, flags)
        has_ended = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._demand_short(len(fragment))
            self._receiver.headers(stream_id, fragment, has_ended)
            return
        self._block = bytearray(fragment)
        self._block_stream_id, self._block_has_ended = stream_id, has_ended
        self._num_fragments = 1

    def _continue_block(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None or stream_id != self._block_stream_id:
            raise ConnectionFault(frames.PROTOCOL_ERROR, "CONTINUATION of no header block")
        self._block += payload
        self._num_fragments += 1
        self._demand_short(len(self._block))
        if self._num_fragments > _MAX_FRAGMENTS:
            raise ConnectionFault(frames.ENHANCE_YOUR_CALM, "a header block in too many pieces")
        if flags & frames.END_HEADERS:
            block, self._block = bytes(self._block), None
            self._receiver.headers(stream_id, block, self._block_has_ended)

    def _demand_short(self, length: int) -> None:
        limit = self._limits.max_header_bytes
        if length > limit:
            raise ConnectionFault(
                frames.ENHANCE_YOUR_CALM, f"a header block of {length} bytes, the limit is {limit}"
            )
