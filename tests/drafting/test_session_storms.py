"""Many sessions, and peers that vanish: nothing is left of them, and none sees another's."""

from __future__ import annotations

import gc
import random
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import psutil
import pytest
import trio
import trio.testing

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.config.settings import Settings
from kakeya.drafting import session_states as s
from kakeya.errors import Refused
from kakeya.node.parts import build_parts
from kakeya.node.seams import embedded_seams
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Peer
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import (
    CapabilityServiceStub,
    DFlashProposerServiceStub,
)
from tests.drafting.numpy_drafter import SHAPE, NumpyDrafter
from tests.drafting.session_host import Caller, PeerDialer, calling, hosting, refused
from tests.drafting.session_requests import aux, draft, extend, restore, seed, seed_of

WIDE = replace(SHAPE, hidden_size=512)


def resident_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


# ---- memory


@pytest.mark.spec("S-11", "S-13")
async def test_a_thousand_sessions_opened_and_abandoned_leave_nothing(autojump_clock):
    """Of 0.5 MB each, sixty at a time: what was resident before is resident after, within 5 %."""
    drafter = NumpyDrafter(shape=WIDE)
    limits = SessionLimits(max_sessions=60, max_sessions_per_peer=60)
    requests = (restore(), seed(shape=WIDE), draft(), extend(6, 70, shape=WIDE))

    async def abandon(host, number: int) -> None:
        session = host.open(f"s{number}")
        for request in requests:
            await session.desk.ask(request)

    async with hosting(drafter=drafter, limits=limits) as host:
        for number in range(1060):
            if number % 60 == 0:
                await trio.sleep(61)
                assert host.sessions.counts().num_bytes == 0
            if number == 60:
                before = resident_bytes()
                peak = host.sessions.counts()
            await abandon(host, number)
        await trio.sleep(61)
        assert host.sessions.counts().closed[s.Ending.IDLE] == 1060
        assert peak.num_sessions == 0
        after = resident_bytes()
    assert after < 1.05 * before, (before, after)


@pytest.mark.spec("S-12")
async def test_ten_thousand_opens_beyond_the_cap_are_refused_in_flat_memory():
    caller = SimpleNamespace(principal="", peer_address="10.0.0.1:1")
    async with hosting(limits=SessionLimits(max_sessions_per_peer=4)) as host:

        async def open_one(number: int) -> tuple[str, str]:
            message = pb.RestoreRequest(session_id=f"s{number}", prompt_ids=[1, 2], window=9)
            return await refused(host.service.Restore(message, caller))

        for number in range(4):
            host.open(f"open{number}", "connection 10.0.0.1:1")
        await open_one(0)
        tracemalloc.start()
        for number in range(10_000):
            status, why = await open_one(number)
            assert status == "RESOURCE_EXHAUSTED"
            if number == 100:
                gc.collect()
                start_bytes, _ = tracemalloc.get_traced_memory()
        gc.collect()
        end_bytes, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert why == "4 sessions are open, the limit for one peer is 4"
        assert host.sessions.counts().num_sessions == 4
        assert end_bytes - start_bytes < 20_000
        assert peak_bytes - start_bytes < 1_000_000


@pytest.mark.spec("S-11", "S-12")
async def test_two_hundred_verifiers_that_vanish_leave_nothing(autojump_clock):
    """Each at another point of its turn, its connection cut without a word."""
    rng = seed_of()
    limits = SessionLimits(max_sessions=40)
    async with hosting(limits=limits, device=InlineDevice(0.05)) as host:
        for number in range(200):
            whose = Peer(f"10.0.0.1:{number}")
            async with calling(host, whose=whose, name=f"s{number}") as caller:
                with trio.move_on_after(rng.uniform(0.01, 1.0)):
                    await caller.at(s.Drafting)
                    await caller.extend()
                    await caller.draft(8)
            await trio.sleep(1.5)
        assert 0 < host.sessions.counts().num_sessions <= 40
        await trio.sleep(61)
        counts = host.sessions.counts()
        assert (counts.num_sessions, counts.num_bytes) == (0, 0)
        ended = {ending: num for ending, num in counts.closed.items() if num}
        assert set(ended) <= {s.Ending.IDLE, s.Ending.RESTORE_FAILED}
        assert sum(ended.values()) <= 200
        async with calling(host) as caller:
            await caller.at(s.Drafting)


# ---- no cross-talk


@dataclass
class Verifier:
    """A host A that loses its connection now and then, and knows what it should be answered."""

    number: int
    rng: random.Random
    endpoint: object
    limits: object
    caller: Caller | None = None
    reference: NumpyDrafter = field(default_factory=NumpyDrafter)
    num_checked: int = 0
    num_lost: int = 0

    async def run(self) -> None:
        """Three turns of some blocks each, every answer compared with that of a session alone."""
        async with trio.open_nursery() as nursery:
            await self._dial(nursery)
            for turn in range(3):
                await self._turn(nursery, seed=self.number * 1000 + turn)
            nursery.cancel_scope.cancel()

    async def _dial(self, nursery: trio.Nursery) -> None:
        dialer = PeerDialer(self.endpoint, nursery, Peer("link", f"porch-{self.number}"))
        channels = Channels(dialer=dialer, limits=self.limits, rng=self.rng)
        await nursery.start(channels.serve)
        stub = DFlashProposerServiceStub(channels.to("there:1"))
        self.dialer, self.caller = dialer, Caller(stub, f"generation-{self.number}")

    async def _turn(self, nursery: trio.Nursery, seed: int) -> None:
        prompt_len = self.rng.randint(1, 40)
        ids = [self.rng.randrange(SHAPE.vocab_size) for _ in range(prompt_len)]
        if not self.rng.randrange(3):
            await self._sure(nursery, lambda: self.caller.close())
        answer = await self._sure(nursery, lambda: self.caller.restore(ids))
        assert answer.prompt_len == prompt_len
        at = self.rng.randint(1, prompt_len)
        context = await self._seed(nursery, at, seed)
        for _ in range(self.rng.randint(1, 6)):
            num_rows = self.rng.randint(1, 20)
            rows = aux(num_rows, first=at, seed=seed).rows(0, num_rows)
            for first in range(0, num_rows, SHAPE.max_extend_len):
                last = min(num_rows, first + SHAPE.max_extend_len)
                piece = aux(last - first, first=at + first, seed=seed).rows(0, last - first)
                context = self.reference.extend(context, at + first, piece)
            assert len(rows) == SHAPE.num_aux
            await self._block(nursery, at, num_rows, seed, context)
            at += num_rows

    async def _seed(self, nursery: trio.Nursery, num_rows: int, seed: int):
        context = None
        for first in range(0, num_rows, SHAPE.max_extend_len):
            size = min(SHAPE.max_extend_len, num_rows - first)
            piece = aux(size, first=first, seed=seed).rows(0, size)
            context = self.reference.extend(context, first, piece)
        try:
            await self._sure(nursery, lambda: self.caller.seed(num_rows, seed=seed))
        except RpcFailedError as error:
            # Its answer was lost: the rows are there.
            if status_name(error) != "FAILED_PRECONDITION" or not self.num_lost:
                raise
        return context

    async def _block(self, nursery, at: int, num_rows: int, seed: int, context) -> None:
        """The rows of a block and the draft behind them, side by side."""
        bonus_id, num_drafts = self.rng.randrange(SHAPE.vocab_size), self.rng.randint(1, 16)
        end, answers = at + num_rows, {}

        async def extend_it():
            await trio.sleep(self.rng.uniform(0, 0.002))
            answers["extend"] = await self._sure(
                nursery, lambda: self.caller.extend(at, num_rows, seed=seed)
            )

        async def draft_it():
            await trio.sleep(self.rng.uniform(0, 0.002))
            answers["draft"] = await self._sure(
                nursery, lambda: self.caller.draft(end, bonus_id=bonus_id, num_drafts=num_drafts)
            )

        async with trio.open_nursery() as both:
            both.start_soon(extend_it)
            both.start_soon(draft_it)
        assert answers["extend"].context_len == end
        expected = self.reference.draft(context, end, bonus_id, num_drafts).ids
        assert tuple(answers["draft"].draft_token_ids) == expected
        self.num_checked += 1

    async def _sure(self, nursery: trio.Nursery, call):
        """The answer of `call`, asked again over a new connection as often as it takes."""
        if not self.rng.randrange(8):
            nursery.start_soon(self._cut)
        while True:
            try:
                return await call()
            except RpcFailedError as error:
                if status_name(error) != "UNAVAILABLE":
                    raise
                self.num_lost += 1
                await trio.sleep(0.02)

    async def _cut(self) -> None:
        await trio.sleep(self.rng.uniform(0, 0.003))
        for ours, theirs in self.dialer.streams:
            await trio.aclose_forcefully(ours)
            await trio.aclose_forcefully(theirs)
        self.dialer.streams.clear()


@pytest.mark.spec("S-07", "S-08", "S-09", "S-14")
async def test_32_sessions_in_chaos_each_get_what_they_would_get_alone():
    """Over the whole RPC layer and a real thread; gossip is answered all the while."""
    rng = seed_of()
    settings = Settings(verifier="none")
    parts = build_parts(settings, embedded_seams(settings), [NumpyDrafter()])
    waits_s: list[float] = []
    verifiers = [
        Verifier(n, random.Random(rng.random()), parts.endpoint, settings.rpc) for n in range(32)
    ]
    async with trio.open_nursery() as nursery:
        await nursery.start(parts.dflash.device.serve)
        await nursery.start(parts.dflash.sessions.run)
        nursery.start_soon(gossip, parts.endpoint, settings.rpc, waits_s)
        async with trio.open_nursery() as running:
            for verifier in verifiers:
                running.start_soon(verifier.run)
        nursery.cancel_scope.cancel()
    assert sum(each.num_checked for each in verifiers) >= 32 * 3
    assert sum(each.num_lost for each in verifiers) > 20
    assert len(waits_s) > 20
    assert sorted(waits_s)[len(waits_s) // 2] < 0.5
    assert parts.dflash.sessions.held_bytes == 0


async def gossip(endpoint, limits, waits_s: list[float]) -> None:
    async with trio.open_nursery() as nursery:
        dialer = PeerDialer(endpoint, nursery, Peer("link"))
        channels = Channels(dialer=dialer, limits=limits, rng=random.Random(1))
        await nursery.start(channels.serve)
        stub = CapabilityServiceStub(channels.to("there:1"))
        while True:
            started_s = trio.current_time()
            await stub.GetNodeCapability(pb.GetNodeCapabilityRequest())
            waits_s.append(trio.current_time() - started_s)
            await trio.sleep(0.005)


# ---- cancellation at every checkpoint


class CancelAt(trio.abc.Instrument):
    """Cancels `scope` behind the given step, of whichever task."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._left = step
        self._scope = scope

    def after_task_step(self, task) -> None:
        self._left -= 1
        if not self._left:
            self._scope.cancel()


async def cancelled_at(step: int, call) -> bool:
    """Whether `call` was still running when its caller left behind that many steps of the loop."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(step, scope)
        trio.lowlevel.add_instrument(instrument)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


@pytest.mark.spec("S-02", "S-14")
@pytest.mark.parametrize("state", [s.Opened, s.Restored, s.Seeded, s.Drafting])
@pytest.mark.parametrize("job_s", [0.0, 0.01])
async def test_a_caller_may_leave_at_any_checkpoint(state, job_s, autojump_clock):
    """Over the RPC layer: after each, the session is what it was or what it should become."""
    calls = {
        s.Opened: lambda c: c.restore(),
        s.Restored: lambda c: c.seed(),
        s.Seeded: lambda c: c.extend(6, 40),
        s.Drafting: lambda c: c.draft(6, bonus_id=9),
    }
    async with hosting(device=InlineDevice(job_s)) as host, calling(host) as caller:
        twin = await Caller(caller.stub, "twin").at(s.Drafting)
        expected = await twin.draft(6, bonus_id=9)
        step, was_cancelled = 0, True
        while was_cancelled:
            step += 1
            await caller.at(state)
            was_cancelled = await cancelled_at(step, lambda: calls[state](caller))
            await trio.sleep(1)
            session = host.sessions.find("s", "connection link")
            if session is not None:
                assert (session.desk.serving, session.desk._tickets) == (None, [])
            # Whatever came of it, the way from there leads to the same draft.
            if state is s.Opened or session is None:
                await caller.at(s.Seeded)
            elif state is s.Restored and (await whole(caller)) is False:
                await caller.seed()
            if state is not s.Seeded:
                assert (await caller.draft(6, bonus_id=9)) == expected
            await caller.close()
        assert 2 < step < 100
        await twin.close()
        assert host.sessions.counts().num_bytes == host.sessions.counts().num_sessions == 0


async def whole(caller: Caller) -> bool:
    """Whether the rows were written before the caller left."""
    try:
        return (await caller.extend(0, 6)).context_len == 6
    except RpcFailedError as error:
        if status_name(error) != "FAILED_PRECONDITION":
            raise
        return False


@pytest.mark.spec("S-02", "S-14")
async def test_callers_leaving_at_random_never_stop_the_others(autojump_clock):
    rng = seed_of()
    async with hosting(device=InlineDevice(0.01)) as host:
        session = await host.at(s.Seeded)
        requests = [draft(), draft(bonus_id=8), extend(6, 40), restore(), draft(3), extend(2, 1)]

        async def come_and_go() -> None:
            for _ in range(20):
                with trio.move_on_after(rng.choice([0, 0.001, 0.01, 0.02, 0.1])):
                    with suppress(Refused):
                        await session.desk.ask(rng.choice(requests))
                await trio.sleep(rng.uniform(0, 0.05))

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(come_and_go)
        await trio.sleep(3)
        assert (session.desk.serving, session.desk._tickets) == (None, [])
        await session.desk.ask(restore([1] * 60))
        await session.desk.ask(s.CloseSession())
        assert host.sessions.counts().num_bytes == 0
