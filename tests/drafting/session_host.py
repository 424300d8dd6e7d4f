"""Host B in a test: sessions and their service around a numpy drafter, on any device."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from kakeya.compute.device import InlineDevice, LivingDevice, ThreadDevice
from kakeya.config.rpc import RpcLimits
from kakeya.config.sessions import SessionLimits
from kakeya.config.wire import WireLimits
from kakeya.drafting import session_states as s
from kakeya.drafting.dflash_service import DflashService
from kakeya.drafting.sessions import Session, Sessions
from kakeya.errors import Refused
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Endpoint, Peer
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_requests import ONE_OF_EACH, PATHS, PROMPT, PROMPT_LEN, tensors
from tests.rpc.peers import LinkDialer

LIMITS = SessionLimits()
PEER = "connection link"  # what LinkDialer's peers are


@dataclass
class Host:
    drafter: NumpyDrafter
    device: LivingDevice
    sessions: Sessions
    service: DflashService
    owners: trio.CancelScope

    def open(self, name: str = "s", peer: str = PEER) -> Session:
        return self.sessions.open(name, peer, self.drafter)

    async def at(self, state: type, name: str = "s") -> Session:
        """A session brought to `state` by the shortest way."""
        session = self.open(name)
        for request in PATHS[state]:
            await session.desk.ask(ONE_OF_EACH[request])
        return session


@asynccontextmanager
async def hosting(
    *,
    drafter: NumpyDrafter | None = None,
    limits: SessionLimits = LIMITS,
    device: LivingDevice | None = None,
) -> AsyncIterator[Host]:
    drafter = drafter or NumpyDrafter()
    device = device or InlineDevice()
    sessions = Sessions(device=device, limits=limits)
    service = DflashService(sessions, device=device, limits=limits, wire=WireLimits())
    service.add(drafter)
    owners = trio.CancelScope()

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with owners:
            await sessions.run(task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        await nursery.start(run)
        yield Host(drafter, device, sessions, service, owners)
        nursery.cancel_scope.cancel()


def thread() -> ThreadDevice:
    return ThreadDevice(name="dflash", max_waiting=256)


async def refused(call: Any) -> tuple[str, str]:
    """Status and text of what `call` is refused with."""
    with pytest.raises((Refused, RpcFailedError)) as caught:
        await call
    error = caught.value
    if isinstance(error, Refused):
        return error.status, error.why
    return status_name(error), status_text(error)


class PeerDialer(LinkDialer):
    """Links whose peers have the name or address `whose`."""

    def __init__(self, endpoint: Endpoint, nursery: trio.Nursery, whose: Peer) -> None:
        super().__init__({"there:1": endpoint}, nursery)
        self.whose = whose

    async def open(self, address: str) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.streams.append((ours, theirs))
        self.nursery.start_soon(self.endpoints[address].serve_stream, theirs, self.whose)
        return ours


@dataclass
class Caller:
    """One peer's calls to one session, in the contract's words."""

    stub: Any
    name: str = "s"

    def restore(self, ids=PROMPT, *, sink=1, window=2, **more):
        return self.stub.Restore(
            pb.RestoreRequest(
                session_id=self.name, prompt_ids=ids, sink=sink, window=window, **more
            )
        )

    def seed(self, num_rows=PROMPT_LEN, *, seed=0, **more):
        made = tensors(num_rows, seed=seed, **more)
        return self.stub.SeedContext(
            pb.SeedContextRequest(session_id=self.name, aux=made, positions=range(num_rows))
        )

    def draft(self, context_len=PROMPT_LEN, *, bonus_id=7, num_drafts=3):
        return self.stub.DraftBlock(
            pb.DraftBlockRequest(
                session_id=self.name,
                bonus_token_id=bonus_id,
                context_len=context_len,
                block_size=num_drafts,
            )
        )

    def extend(self, first=PROMPT_LEN, num_rows=2, *, seed=0, **more):
        made = tensors(num_rows, seed=seed, first=first, **more)
        positions = range(first, first + num_rows)
        return self.stub.ExtendContext(
            pb.ExtendContextRequest(session_id=self.name, aux=made, positions=positions)
        )

    def close(self):
        return self.stub.CloseSession(
            pb.DFlashProposerServiceCloseSessionRequest(session_id=self.name)
        )

    def of_kind(self, request: type):
        """The call of that kind that fits wherever the table has it."""
        return {
            s.Restore: self.restore,
            s.SeedContext: self.seed,
            s.DraftBlock: self.draft,
            s.ExtendContext: self.extend,
            s.CloseSession: self.close,
        }[request]()

    async def at(self, state: type) -> Caller:
        for request in PATHS[state]:
            await self.of_kind(request)
        return self


@asynccontextmanager
async def calling(
    host: Host, *, whose: Peer | None = None, name: str = "s", services=()
) -> AsyncIterator[Caller]:
    """A peer of `host` over a link in memory: the whole RPC layer, no socket."""
    limits = RpcLimits()
    endpoint = Endpoint([host.service.service, *services], limits=limits)
    async with trio.open_nursery() as nursery:
        dialer = PeerDialer(endpoint, nursery, whose or Peer("link"))
        channels = Channels(dialer=dialer, limits=limits, rng=random.Random(5))
        await nursery.start(channels.serve)
        yield Caller(DFlashProposerServiceStub(channels.to("there:1")), name)
        nursery.cancel_scope.cancel()
