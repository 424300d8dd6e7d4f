"""The sessions of a whole node's parts, asked over a link in memory."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager

import trio

from kakeya.config.settings import Settings
from kakeya.node.parts import build_parts
from kakeya.node.seams import embedded_seams
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Peer
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.drafting.session_host import Caller, PeerDialer


@asynccontextmanager
async def asking(settings: Settings, drafters=()):
    """The parts of a node, and a caller of its sessions over a link in memory."""
    parts = build_parts(settings, embedded_seams(settings), drafters)
    async with trio.open_nursery() as nursery:
        dialer = PeerDialer(parts.endpoint, nursery, Peer("link"))
        channels = Channels(dialer=dialer, limits=settings.rpc, rng=random.Random(1))
        await nursery.start(channels.serve)
        await nursery.start(parts.dflash.device.serve)
        await nursery.start(parts.dflash.sessions.run)
        yield parts, Caller(DFlashProposerServiceStub(channels.to("there:1")))
        nursery.cancel_scope.cancel()
