"""Servicers and servers that the RPC tests talk to."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing

from kakeya.config.rpc import RpcLimits
from kakeya.errors import Refused
from kakeya.rpc.channel import Channel, Channels
from kakeya.rpc.endpoint import Endpoint, Peer
from kakeya.wire.pb.kakeya.node.v1 import node_grpc, node_pb2

LIMITS = RpcLimits()


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # a storm flips bits in what it sends
        raise Refused("INVALID_ARGUMENT", f"{text!r} is no number of seconds") from None


@dataclass
class Node(node_grpc.NodeServiceServicer):
    """Echoes, waits, refuses or fails by what `model_id` and `text` say; counts what happened."""

    running: int = 0
    cancelled: int = 0
    served: int = 0
    calls: list[Any] = field(default_factory=list)

    async def GetFleet(self, input_message, request):  # type: ignore[override]
        self.calls.append(request)
        self.running += 1
        try:
            return await self._answer(input_message)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, message):
        verb, _, rest = message.model_id.partition(" ")
        if verb == "wait":
            await trio.sleep(_seconds(rest))
        elif verb == "refuse":
            status, _, why = rest.partition(" ")
            raise Refused(status, why)
        elif verb == "fail":
            raise RuntimeError("secret /path/of/ours")
        elif verb == "big":
            return node_pb2.GetFleetResponse(fleet_name="x" * int(rest))
        self.served += 1
        return node_pb2.GetFleetResponse(fleet_name=message.model_id)

    async def Generate(self, input_message):  # type: ignore[override]
        self.running += 1
        try:
            for number in range(input_message.max_tokens):
                await trio.sleep(input_message.temperature)
                yield node_pb2.GenerateEvent(ids=[number], text=input_message.text)
            if input_message.raw:
                raise Refused("ABORTED", "as asked")
            self.served += 1
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


@dataclass
class LinkDialer:
    """Dials endpoints by name over links in memory; a link takes `delay_s` each way."""

    endpoints: dict[str, Endpoint]
    nursery: trio.Nursery
    delay_s: float = 0.0
    streams: list[Any] = field(default_factory=list)

    async def open(self, address: str) -> trio.abc.Stream:
        if address not in self.endpoints:
            raise OSError(f"no route to {address}")
        ours, theirs = trio.testing.memory_stream_pair()
        self.streams.append((ours, theirs))
        if self.delay_s:
            ours, theirs = Slow(ours, self.delay_s), Slow(theirs, self.delay_s)
            self.nursery.start_soon(ours.carry)
            self.nursery.start_soon(theirs.carry)
        self.nursery.start_soon(serve, self.endpoints[address], theirs)
        return ours


async def serve(endpoint: Endpoint, stream: trio.abc.Stream) -> None:
    await endpoint.serve_stream(stream, Peer("link"))


class Slow(trio.abc.Stream):
    """A stream whose bytes arrive `delay_s` after they were sent."""

    def __init__(self, inner: Any, delay_s: float) -> None:
        self._inner = inner
        self._delay_s = delay_s
        self._send, self._receive = trio.open_memory_channel(10_000)

    async def carry(self) -> None:
        async for due, piece in self._receive:
            await trio.sleep_until(due)
            try:
                await self._inner.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
        await self._inner.aclose()

    async def send_all(self, data) -> None:
        await self._send.send((trio.current_time() + self._delay_s, bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        # What was sent before still arrives.
        self._send.close()
        await trio.lowlevel.checkpoint()


@dataclass
class Pair:
    """One endpoint, and a channel to it."""

    node: Node
    endpoint: Endpoint
    channels: Channels
    channel: Channel
    dialer: LinkDialer
    nursery: trio.Nursery

    @property
    def stub(self) -> node_grpc.NodeServiceStub:
        return node_grpc.NodeServiceStub(self.channel)


@asynccontextmanager
async def linked(
    limits: RpcLimits = LIMITS, *, delay_s=0.0, admit=None, **more
) -> AsyncIterator[Pair]:
    """A caller and an endpoint over a link in memory."""
    node = Node()
    endpoint = Endpoint([node.service], limits=limits, admit=admit, **more)
    async with trio.open_nursery() as nursery:
        dialer = LinkDialer({"there:1": endpoint}, nursery, delay_s)
        channels = Channels(dialer=dialer, limits=limits, rng=random.Random(7))
        await nursery.start(channels.serve)
        yield Pair(node, endpoint, channels, channels.to("there:1"), dialer, nursery)
        nursery.cancel_scope.cancel()


def ask(model_id: str = "hello", **fields) -> node_pb2.GetFleetRequest:
    return node_pb2.GetFleetRequest(model_id=model_id, **fields)
