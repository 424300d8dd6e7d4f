"""A node's DFlash sessions: drafters given and joined, limits from settings, the drain."""

from __future__ import annotations

import random
import threading

import pytest
import trio

from kakeya.config.sessions import SessionLimits
from kakeya.config.settings import Settings
from kakeya.drafting import session_states as s
from kakeya.node.parts import Parts
from kakeya.node.run import run_node
from kakeya.node.seams import embedded_seams
from kakeya.rpc.channel import Channels
from kakeya.rpc.dialing import TcpDialer
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_host import Caller, refused
from tests.node.sessions import asking


async def load(parts: Parts) -> NumpyDrafter:
    return await parts.dflash.device.run(NumpyDrafter, "late")


@pytest.mark.spec("S-03")
async def test_a_drafter_may_join_a_node_that_serves():
    async with asking(Settings(verifier="none")) as (parts, caller):
        assert (await refused(caller.restore()))[0] == "NOT_FOUND"
        parts.dflash.service.add(await load(parts))
        await caller.at(s.Drafting)
        caller.name = "by name"
        assert (await caller.restore(model_id="late")).prompt_len == 6


@pytest.mark.spec("S-12")
async def test_the_limits_are_those_of_the_settings(autojump_clock):
    settings = Settings(verifier="none", sessions=SessionLimits(max_sessions=1, seeded_s=5))
    async with asking(settings, [NumpyDrafter()]) as (parts, caller):
        await caller.at(s.Seeded)
        caller.name = "other"
        assert await refused(caller.restore()) == (
            "RESOURCE_EXHAUSTED",
            "1 sessions are open, the limit for this node is 1",
        )
        await trio.sleep(5.1)
        assert parts.dflash.sessions.counts().closed[s.Ending.IDLE] == 1
        await caller.at(s.Seeded)


async def test_all_work_is_done_on_the_engines_own_thread():
    drafter = NumpyDrafter()
    async with asking(Settings(verifier="none"), [drafter], on_threads=True) as (_, caller):
        await caller.at(s.Drafting)
        await caller.extend()
    assert drafter.threads.isdisjoint({threading.get_ident()})
    assert len(drafter.threads) == 1


@pytest.mark.spec("S-16")
async def test_a_node_that_drains_ends_the_job_under_way_and_then_its_sessions():
    settings = Settings(verifier="none", port=0)
    began, may_end = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "draft":
            began.set()
            may_end.wait(5)

    drafter, made = NumpyDrafter(before_job=slow), []
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            seams = embedded_seams(settings)
            running = await nursery.start(run_node, settings, seams, [drafter])
            async with trio.open_nursery() as callers:
                channels = Channels(
                    dialer=TcpDialer(settings.rpc, None), limits=settings.rpc, rng=random.Random(1)
                )
                await callers.start(channels.serve)
                stub = DFlashProposerServiceStub(channels.to(running.grpc_address))
                caller = await Caller(stub).at(s.Seeded)

                async def draft() -> None:
                    made.append(await caller.draft())

                async with trio.open_nursery() as drafting:
                    drafting.start_soon(draft)
                    await trio.to_thread.run_sync(began.wait, 5)
                    running.stop(interrupted=False)
                    await trio.sleep(0.05)
                    assert (await refused(Caller(stub, "late").restore()))[0] == "UNAVAILABLE"
                    may_end.set()
                callers.cancel_scope.cancel()
            await running.ended()
    assert len(made[0].draft_token_ids) == 3
