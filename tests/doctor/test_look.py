"""Peers that do not answer, on a mock clock; those that do are looked at in tests/cli."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from kakeya.config.rpc import RpcLimits
from kakeya.doctor.look import look_at, whom_we_are
from kakeya.doctor.peers import Ours
from kakeya.rpc.channel import Channels

OURS = Ours("0.1.0", "kakeya", "", "", ttl_s=120.0)
PLACE = "10.0.0.2:50051"


class Hanging:
    """Packets that nobody answers."""

    async def open(self, address: str) -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError


class Refusing:
    async def open(self, address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except OSError as error:
            raise OSError("all attempts to connect failed") from ExceptionGroup("", [error])


class Mute:
    """Somebody who takes connections and says nothing."""

    def __init__(self) -> None:
        self._ends: list[trio.abc.Stream] = []

    async def open(self, address: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        ours, theirs = trio.testing.memory_stream_pair()
        self._ends.append(theirs)
        return ours


async def seen_through(dialer):
    channels = Channels(dialer=dialer, limits=RpcLimits(), rng=random.Random(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(channels.serve)
        seen = await look_at(
            PLACE, channels=channels, ours=OURS, wall=trio.current_time, has_tls=False
        )
        ours = await whom_we_are(PLACE, channels, OURS)
        nursery.cancel_scope.cancel()
    return seen, ours


@pytest.mark.spec("N-13")
@pytest.mark.parametrize(
    ("dialer", "error"),
    [(Hanging(), "no answer within 3 s"), (Refusing(), "Connection refused")],
)
async def test_a_peer_that_is_not_reached_is_told_with_the_cause(dialer, error, autojump_clock):
    seen, ours = await seen_through(dialer)
    assert (seen.dial_error, seen.status) == (error, "")
    assert ours == OURS


@pytest.mark.spec("N-13")
async def test_a_peer_that_takes_connections_and_says_nothing_holds_nobody_up(autojump_clock):
    seen, ours = await seen_through(Mute())
    assert (seen.dial_error, seen.status) == ("", "DEADLINE_EXCEEDED")
    assert trio.current_time() < 10
    assert ours == OURS
