"""A network that is farther away than it is: every byte arrives half a round trip later."""

from __future__ import annotations

import trio

from kakeya.rpc.channel import Dialer

READ_BYTES = 256 << 10
# Chunks under way in one direction; the sender waits when so many are.
MAX_UNDER_WAY = 1024

Chunk = tuple[float, bytes]  # when it is due (trio's clock, s), and what


class DelayingDialer:
    """Opens streams of `dialer` with a round trip longer by `rtt_s`.

    nursery: runs what carries the bytes; it outlives the streams.
    """

    def __init__(self, dialer: Dialer, rtt_s: float, nursery: trio.Nursery) -> None:
        self._dialer = dialer
        self._one_way_s = rtt_s / 2
        self._nursery = nursery

    async def open(self, address: str) -> trio.abc.Stream:
        there = await self._dialer.open(address)
        to_send, sending = trio.open_memory_channel[Chunk](MAX_UNDER_WAY)
        receiving, received = trio.open_memory_channel[Chunk](MAX_UNDER_WAY)
        self._nursery.start_soon(_carry_out, sending, there)
        self._nursery.start_soon(_carry_in, there, receiving, self._one_way_s)
        return _Delayed(there, to_send, received, self._one_way_s)


class _Delayed(trio.abc.Stream):
    def __init__(
        self,
        there: trio.abc.Stream,
        to_send: trio.MemorySendChannel[Chunk],
        received: trio.MemoryReceiveChannel[Chunk],
        one_way_s: float,
    ) -> None:
        self._there = there
        self._to_send = to_send
        self._received = received
        self._one_way_s = one_way_s
        self._left = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._to_send.send((trio.current_time() + self._one_way_s, bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if not self._left:
            try:
                due_s, self._left = await self._received.receive()
            except trio.EndOfChannel:
                return b""
            await trio.sleep_until(due_s)
        size = len(self._left) if max_bytes is None else max_bytes
        data, self._left = self._left[:size], self._left[size:]
        return data

    async def aclose(self) -> None:
        self._to_send.close()
        self._received.close()
        await self._there.aclose()


async def relay(listeners: list[trio.SocketListener], dialer: Dialer, address: str) -> None:
    """Carry what connects to `listeners` to `address` and back; until cancelled."""

    async def carry(near: trio.abc.Stream) -> None:
        try:
            far = await dialer.open(address)
        except OSError:
            return
        async with far, trio.open_nursery() as nursery:
            nursery.start_soon(_pour, near, far, nursery.cancel_scope)
            nursery.start_soon(_pour, far, near, nursery.cancel_scope)

    await trio.serve_listeners(carry, listeners)


async def _pour(source: trio.abc.Stream, sink: trio.abc.Stream, both: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(READ_BYTES):
            await sink.send_all(data)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # one side's end is the other's
    both.cancel()


async def _carry_out(sending: trio.MemoryReceiveChannel[Chunk], there: trio.abc.Stream) -> None:
    try:
        async for due_s, data in sending:
            await trio.sleep_until(due_s)
            await there.send_all(data)
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        sending.close()  # the next send says so


async def _carry_in(
    there: trio.abc.Stream, receiving: trio.MemorySendChannel[Chunk], one_way_s: float
) -> None:
    with receiving:
        try:
            while data := await there.receive_some(READ_BYTES):
                await receiving.send((trio.current_time() + one_way_s, bytes(data)))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return  # to who reads it is the end


__all__ = ["DelayingDialer", "relay"]
