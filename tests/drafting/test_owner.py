"""The owner of a session against the clock, its callers' cancellations and its own faults."""

from __future__ import annotations

import gc
import itertools
import weakref
from contextlib import suppress

import pytest
import trio
import trio.testing

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.drafting import machine
from kakeya.drafting import session_states as s
from kakeya.errors import Refused
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_host import PEER, hosting, refused, thread
from tests.drafting.session_requests import (
    ONE_OF_EACH,
    PATHS,
    draft,
    extend,
    restore,
    seed,
)

PAIRS = list(itertools.product(PATHS, ONE_OF_EACH))
OPEN_WAITS = SessionLimits(
    opened_s=3.0, restored_s=5.0, seeded_s=7.0, drafting_s=11.0, life_s=100.0, early_s=1.0
)


def names(pair) -> tuple[str, str]:
    return pair[0].__name__, pair[1].__name__


@pytest.mark.spec("S-01")
@pytest.mark.parametrize("pair", [p for p in PAIRS if p not in machine.TABLE], ids=names)
async def test_every_pair_the_table_lacks_is_refused_and_changes_nothing(pair, autojump_clock):
    async with hosting() as host:
        session = await host.at(pair[0])
        status, why = await refused(session.desk.ask(ONE_OF_EACH[pair[1]]))
        assert status == "FAILED_PRECONDITION"
        assert why.startswith(f"{pair[1].__name__} in state {pair[0].__name__}")
        for request in list(PATHS[s.Drafting])[len(PATHS[pair[0]]) :]:
            await session.desk.ask(ONE_OF_EACH[request])


# ---- limits in time


@pytest.mark.spec("S-11")
@pytest.mark.parametrize("state", PATHS)
async def test_each_state_waits_only_so_long(state, autojump_clock):
    async with hosting(limits=OPEN_WAITS) as host:
        await host.at(state)
        wait_s = getattr(OPEN_WAITS, machine.WAITS[state])
        await trio.sleep(wait_s - 0.01)
        host.sessions.get("s", PEER)
        await trio.sleep(0.02)
        assert host.sessions.counts().num_bytes == host.sessions.counts().num_sessions == 0
        assert host.sessions.counts().closed[s.Ending.IDLE] == 1
        await trio.sleep(12)
        status, why = await refused(ask_for(host))
        assert (status, why) == (
            "NOT_FOUND",
            f"session 's' has ended: idle {wait_s:g} s in {state.__name__}, 12 s ago",
        )


async def ask_for(host):
    return host.sessions.get("s", PEER)


@pytest.mark.spec("S-01", "S-11")
async def test_a_refused_request_does_not_make_a_session_wait_longer(autojump_clock):
    async with hosting(limits=OPEN_WAITS) as host:
        session = await host.at(s.Restored)
        await trio.sleep(4)
        await refused(session.desk.ask(draft()))
        await trio.sleep(1.01)
        assert host.sessions.find("s", PEER) is None


@pytest.mark.spec("S-11")
async def test_a_served_request_does(autojump_clock):
    async with hosting(limits=OPEN_WAITS) as host:
        session = await host.at(s.Drafting)
        for _ in range(5):
            await trio.sleep(10)
            await session.desk.ask(draft())
        await trio.sleep(11.01)
        assert host.sessions.find("s", PEER) is None


@pytest.mark.spec("S-11")
async def test_however_busy_a_session_ends_with_its_life(autojump_clock):
    async with hosting(limits=OPEN_WAITS) as host:
        session = await host.at(s.Seeded)
        while host.sessions.find("s", PEER) is not None:
            await session.desk.ask(draft())
            await trio.sleep(7)
        assert trio.current_time() == pytest.approx(100, abs=7)
        assert host.sessions.counts().closed[s.Ending.LIFE] == 1
        assert "lived 100 s" in (await refused(ask_for(host)))[1]


@pytest.mark.spec("S-11")
async def test_a_restore_that_takes_too_long_begins_no_other_job(autojump_clock):
    async with hosting(limits=OPEN_WAITS, device=InlineDevice(job_s=2.0)) as host:
        session = host.open()
        status, why = await refused(session.desk.ask(restore()))
        assert (status, why) == ("DEADLINE_EXCEEDED", "the session's time is over")
        assert trio.current_time() == 4.0
        assert host.sessions.find("s", PEER) is None


# ---- what fails changes nothing


@pytest.mark.spec("S-02", "S-15")
@pytest.mark.parametrize(
    ("state", "request_"),
    [
        (s.Restored, restore()),
        (s.Restored, seed()),
        (s.Seeded, restore()),
        (s.Seeded, restore([1, 2])),
        (s.Seeded, draft()),
        (s.Seeded, extend()),
        (s.Drafting, restore()),
        (s.Drafting, draft(bonus_id=9)),
        (s.Drafting, extend()),
    ],
)
async def test_a_failed_job_changes_nothing(state, request_, autojump_clock, logged):
    async with hosting() as host:
        session = await host.at(state)
        expected = await host.at(state, "twin")

        def fails(name):
            raise MemoryError("secret /path")

        host.drafter.before_job = fails
        assert await refused(session.desk.ask(request_)) == ("INTERNAL", "internal error")
        host.drafter.before_job = lambda name: None
        for each in (session, expected):
            if state is s.Restored:
                await each.desk.ask(seed())
        assert await session.desk.ask(draft()) == await expected.desk.ask(draft())
        assert await session.desk.ask(extend()) == 8
    failed = [event for event in logged if event["log_level"] == "error"]
    assert [event["exc_info"] for event in failed] == [True]  # the trace is in the log


@pytest.mark.spec("S-02")
async def test_a_failed_first_restore_closes(autojump_clock):
    async with hosting() as host:
        session = host.open()
        assert (await refused(session.desk.ask(restore(()))))[0] == "INVALID_ARGUMENT"
        counts = host.sessions.counts()
        assert (counts.num_sessions, counts.closed[s.Ending.RESTORE_FAILED]) == (0, 1)
        status, why = await refused(ask_for(host))
        assert status == "NOT_FOUND"
        assert "its Restore failed: the length of prompt_ids is 0" in why
        assert await host.open().desk.ask(restore())


@pytest.mark.spec("S-02")
async def test_half_written_rows_do_not_exist(autojump_clock):
    """The second of three jobs of one ExtendContext fails; the first has written in place."""
    async with hosting() as host:
        session, twin = await host.at(s.Seeded), await host.at(s.Seeded, "twin")
        jobs = itertools.count()

        def second_fails(name):
            if next(jobs) == 1:
                raise MemoryError

        host.drafter.before_job = second_fails
        assert (await refused(session.desk.ask(extend(6, 40))))[0] == "INTERNAL"
        host.drafter.before_job = lambda name: None
        for each in (session, twin):
            await each.desk.ask(extend(6, 3))
        assert await session.desk.ask(draft(9)) == await twin.desk.ask(draft(9))


@pytest.mark.spec("S-15")
async def test_an_owner_that_fails_ends_its_own_session_only(autojump_clock):
    class Fragile(NumpyDrafter):
        is_broken = False

        def context_bytes(self, context_len):
            return super().context_bytes(context_len) // (0 if self.is_broken else 1)

    drafter = Fragile()
    async with hosting(drafter=drafter, device=InlineDevice(job_s=1.0)) as host:
        session, other = await host.at(s.Seeded), await host.at(s.Seeded, "other")
        told = []

        async def wait_behind():
            told.append(await refused(session.desk.ask(extend())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.desk.ask, draft())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(wait_behind)
            await trio.testing.wait_all_tasks_blocked()
            # The owner looks at it after the job, outside of any request.
            drafter.is_broken = True
        drafter.is_broken = False
        assert told == [("INTERNAL", "internal error")]
        counts = host.sessions.counts()
        assert (counts.closed[s.Ending.CRASHED], counts.num_sessions) == (1, 1)
        assert counts.num_bytes == drafter.context_bytes(6)
        assert await other.desk.ask(draft())
        assert await (await host.at(s.Seeded)).desk.ask(draft())


# ---- callers that leave


@pytest.mark.spec("S-14")
async def test_the_job_under_way_ends_and_its_result_is_kept(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        host.drafter.jobs.clear()
        with trio.move_on_after(0.5) as scope:
            await session.desk.ask(draft())
        assert scope.cancelled_caught
        started = trio.current_time()
        await session.desk.ask(draft())
        assert trio.current_time() - started == pytest.approx(0.5)
        assert host.drafter.jobs == ["draft"]


@pytest.mark.spec("S-14")
async def test_what_nobody_waits_for_is_stopped_before_its_next_job(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        host.drafter.jobs.clear()
        with trio.move_on_after(3.5):  # three checks, and the first of three pieces
            await session.desk.ask(extend(6, 40))
        await trio.sleep(5)
        assert host.drafter.jobs == ["extend"]
        assert await session.desk.ask(draft(6))


@pytest.mark.spec("S-14")
async def test_what_waits_at_the_desk_is_withdrawn_with_its_caller(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        host.drafter.jobs.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.desk.ask, draft())
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(20):
                with trio.move_on_after(0.01):
                    await session.desk.ask(draft(bonus_id=8))
        assert host.drafter.jobs == ["draft"]


@pytest.mark.spec("S-02", "S-14")
async def test_a_first_restore_whose_caller_leaves_closes(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = host.open()
        with trio.move_on_after(0.5):
            await session.desk.ask(restore())
        await trio.sleep(1)
        assert host.sessions.find("s", PEER) is None
        assert "the caller has gone" in (await refused(ask_for(host)))[1]


# ---- memory


@pytest.mark.spec("S-04", "S-13")
@pytest.mark.parametrize("how", ["closed", "idle", "after a refusal", "after a failed job", "turn"])
@pytest.mark.parametrize("device", [InlineDevice, thread])
async def test_the_context_is_free_without_the_collector(how, device):
    """Also behind refusals and failures, whose tracebacks hold the frames that held it."""
    contexts = []

    class Watched(NumpyDrafter):
        def extend(self, *args):
            made = super().extend(*args)
            contexts.append(weakref.ref(made))
            return made

    limits = SessionLimits(drafting_s=0.05) if how == "idle" else SessionLimits()
    gc.collect()
    gc.disable()
    try:
        async with hosting(drafter=Watched(), device=device(), limits=limits) as host:
            session = await host.at(s.Drafting)
            assert contexts[0]() is not None
            await end(host, session, how)
            await trio.testing.wait_all_tasks_blocked()
            assert [ref() for ref in contexts] == [None] * len(contexts)
    finally:
        gc.enable()


async def end(host, session, how) -> None:
    if how == "idle":
        await trio.sleep(0.1)
    elif how == "turn":
        await session.desk.ask(restore())
        return
    elif how == "after a refusal":
        await refused(session.desk.ask(seed()))
        await refused(session.desk.ask(draft(3)))
        await refused(session.desk.ask(extend(6, 401)))
        spoilt = extend()
        spoilt.aux._tensors[0].dtype = "object"
        await refused(session.desk.ask(spoilt))
    elif how == "after a failed job":

        def fails(name):
            raise MemoryError

        host.drafter.before_job = fails
        for request in (draft(bonus_id=9), extend(), restore()):
            await refused(session.desk.ask(request))
    if how != "idle":
        await session.desk.ask(s.CloseSession())


@pytest.mark.spec("S-13")
async def test_the_context_is_free_before_close_is_answered():
    contexts = []

    class Watched(NumpyDrafter):
        def extend(self, *args):
            made = super().extend(*args)
            contexts.append(weakref.ref(made))
            return made

    gc.collect()
    gc.disable()
    try:
        async with hosting(drafter=Watched(), device=thread()) as host:
            session = await host.at(s.Drafting)
            await session.desk.ask(s.CloseSession())
            assert contexts[0]() is None
            assert host.sessions.counts().num_bytes == 0
            assert host.sessions.find("s", PEER) is None
    finally:
        gc.enable()


@pytest.mark.spec("S-13")
async def test_a_requests_tensors_are_free_once_it_is_answered():
    gc.collect()
    gc.disable()
    try:
        async with hosting(device=thread()) as host:
            session = await host.at(s.Seeded)
            requests = [extend(), extend(9, 1), extend(8, 40)]
            kept = [weakref.ref(each.aux) for each in requests]
            await session.desk.ask(requests.pop(0))
            with suppress(Refused):  # pytest.raises would keep its frames
                await session.desk.ask(s.SeedContext(requests.pop(0).aux, 0, 1))
            await session.desk.ask(requests.pop(0))
            await trio.testing.wait_all_tasks_blocked()
            assert [ref() for ref in kept] == [None] * 3
    finally:
        gc.enable()
