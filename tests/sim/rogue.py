"""A node that drafts garbage, and says of itself that it is the fastest of all.

It gossips as any node does; only its ProposerService is not ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import trio

from kakeya.drafting.ngram import NGRAM
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, Model
from kakeya.node.parts import build_parts
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import Server
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import ProposerServiceServicer
from tests.sim.logs import who
from tests.sim.nodes import NodeWorld
from tests.sim.seams import Disk, sim_seams

Manner = Literal["wrong", "few", "many", "none", "unknown", "late", "stale", "refuses", "breaks"]
ROGUE = "rogue"
MANNERS: tuple[Manner, ...] = get_args(Manner)


class Rogue(ProposerServiceServicer):
    """Answers each ProposeBlock in one of its bad manners."""

    def __init__(self, manner: Manner) -> None:
        super().__init__()
        self.manner = manner
        self.num_asked = 0
        # When it was first asked for a real draft (more than a probe's one) and refused it.
        self.refused_s = math.inf
        self._before: tuple[int, ...] = (1,)

    async def ProposeBlock(self, input_message: pb.ProposeBlockRequest) -> pb.ProposeBlockResponse:
        self.num_asked += 1
        await trio.sleep(5.0 if self.manner == "late" else 0.001)
        if self.manner == "refuses":
            if input_message.block_size > 1:
                self.refused_s = min(self.refused_s, trio.current_time())
            raise Refused("RESOURCE_EXHAUSTED", "not for you")
        if self.manner == "breaks":
            raise RuntimeError("a proposer that fails")
        ids = self._ids(tuple(input_message.committed_token_ids), input_message.block_size)
        return pb.ProposeBlockResponse(token_ids=ids)

    def _ids(self, committed: tuple[int, ...], num_drafts: int) -> Sequence[int]:
        ids = {
            "few": [1] * (num_drafts - 1),
            "many": [1] * (num_drafts + 3),
            "none": [],
            "unknown": [4_000_000_000] * num_drafts,
            "stale": list(self._before[-num_drafts:]) * num_drafts,
        }.get(self.manner, [(each + 7) % 48 for each in (committed * num_drafts)[:num_drafts]])
        self._before = committed
        return ids if self.manner != "stale" else ids[:num_drafts]


async def host_rogue(
    world: NodeWorld,
    rogue: Rogue,
    seeds: tuple[str, ...],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Gossip and serve, on a machine of its own, until cancelled."""
    who.set(ROGUE)
    seams = sim_seams(
        world.network, ROGUE, machine=ROGUE, seed=world.seed, boot=0,
        clock=world.clock(ROGUE), disk=Disk(), devices={}, blur=0.0,
    )  # fmt: skip
    settings = replace(
        world.settings,
        host=ROGUE,
        node_id=ROGUE,
        verifier="none",
        peer=tuple(f"{seed}:50051" for seed in seeds),
    )
    parts = build_parts(settings, seams)
    listeners = await seams.listen(settings.host, settings.port)
    server = Server(settings.host, listeners, limits=settings.rpc)
    endpoint = Endpoint([parts.fleet.servicer().service, rogue.service], limits=settings.rpc)
    parts.fleet.listens_on(settings.host, settings.port)
    parts.fleet.announce([Model(NGRAM, ROLE_PROPOSER, "none", 1e9)])
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(parts.channels.serve)
            nursery.start_soon(parts.fleet.run)
            await nursery.start(server.serve, endpoint)
            task_status.started()
    finally:
        world.network.down(ROGUE)
