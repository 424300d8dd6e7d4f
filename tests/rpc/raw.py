"""A peer that speaks frames by hand: for what no honest peer would send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import hpack
import trio
import trio.testing

from kakeya.config.rpc import RpcLimits
from kakeya.rpc import frames
from kakeya.rpc.endpoint import Endpoint, Peer
from kakeya.rpc.headers import request_head
from tests.rpc.peers import LIMITS, Node, ask

PATH = "/kakeya.node.v1.NodeService/GetFleet"
REQUEST = request_head(PATH, "there:1", "http")


def message(payload: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(payload).to_bytes(4, "big") + payload


HELLO = message(ask().SerializeToString())


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.head(len(payload), kind, flags, stream_id) + payload


def headers(stream_id: int, block: bytes = REQUEST, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream_id, block)


def data(stream_id: int, payload: bytes = HELLO, flags: int = frames.END_STREAM) -> bytes:
    return frame(frames.DATA, flags, stream_id, payload)


def call(stream_id: int, payload: bytes = HELLO) -> bytes:
    return headers(stream_id) + data(stream_id, payload)


GREETING = frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK


@dataclass
class Seen:
    """One frame the server sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        at = 4 if self.kind == frames.GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")


def cut(raw: bytes) -> Iterator[Seen]:
    at = 0
    while at + 9 <= len(raw):
        length, kind, flags, stream_id = frames.parse_head(memoryview(raw), at)
        yield Seen(kind, flags, stream_id, raw[at + 9 : at + 9 + length])
        at += 9 + length


@dataclass
class RawPeer:
    """A hand-driven client of one endpoint."""

    stream: Any
    node: Node
    endpoint: Endpoint
    got: bytes = b""
    is_closed: bool = False

    async def send(self, *pieces: bytes) -> None:
        await self.stream.send_all(b"".join(pieces))
        await trio.testing.wait_all_tasks_blocked()

    async def listen(self) -> None:
        while True:
            try:
                piece = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                piece = b""
            if not piece:
                self.is_closed = True
                return
            self.got += piece

    def seen(self, kind: int) -> list[Seen]:
        return [each for each in cut(self.got) if each.kind == kind]

    def status(self, stream_id: int) -> str | None:
        """grpc-status of a call, None while it has none."""
        decoder = hpack.Decoder()
        for each in self.seen(frames.HEADERS):
            fields = dict(decoder.decode(each.payload))
            if each.stream_id == stream_id and "grpc-status" in fields:
                return fields["grpc-status"]
        return None

    def outcome(self, stream_id: int) -> str:
        """What became of a stream, in one phrase."""
        goaways = [each.code for each in self.seen(frames.GOAWAY)]
        if goaways and self.is_closed:
            return f"connection error {frames.ERROR_NAMES[goaways[-1]]}"
        resets = [e.code for e in self.seen(frames.RST_STREAM) if e.stream_id == stream_id]
        status = self.status(stream_id)
        if status is not None:
            return f"status {status}"
        if resets:
            return f"stream error {frames.ERROR_NAMES[resets[0]]}"
        return "nothing"


@asynccontextmanager
async def raw_peer(limits: RpcLimits = LIMITS, *, greeting: bytes = GREETING):
    node = Node()
    endpoint = Endpoint([node.service], limits=limits)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        peer = RawPeer(ours, node, endpoint)
        nursery.start_soon(endpoint.serve_stream, theirs, Peer("raw"))
        nursery.start_soon(peer.listen)
        await peer.send(greeting)
        yield peer
        nursery.cancel_scope.cancel()
