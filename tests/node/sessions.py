"""The sessions of a whole node's parts, asked over a link in memory."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from kakeya.compute.device import InlineDevice
from kakeya.config.settings import Settings
from kakeya.node.parts import build_parts
from kakeya.node.seams import embedded_seams
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Peer
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.drafting.session_host import Caller, PeerDialer


@asynccontextmanager
async def asking(settings: Settings, drafters=(), *, on_threads: bool = False):
    """The parts of a node, and a caller of its sessions over a link in memory."""
    seams = embedded_seams(settings)
    if not on_threads:
        seams = replace(seams, make_device=lambda name: InlineDevice())
    parts = build_parts(settings, seams, drafters)
    async with trio.open_nursery() as nursery:
        dialer = PeerDialer(parts.endpoint, nursery, Peer("link"))
        channels = Channels(dialer=dialer, limits=settings.rpc, rng=random.Random(1))
        await nursery.start(channels.serve)
        await nursery.start(parts.dflash.device.serve)
        await nursery.start(parts.dflash.sessions.run)
        yield parts, Caller(DFlashProposerServiceStub(channels.to("there:1")))
        nursery.cancel_scope.cancel()
