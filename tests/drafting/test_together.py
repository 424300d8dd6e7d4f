"""Drafts that wait together are made together, and each is what it would have been alone."""

from __future__ import annotations

import pytest
import trio

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.drafting import session_states as s
from kakeya.drafting.drafter import BlockAsk
from kakeya.drafting.together import Together
from kakeya.errors import Refused
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_host import Host, hosting, refused, thread
from tests.drafting.session_requests import PROMPT_LEN, draft, extend, restore, seed

JOB_S = 1.0


def slow() -> InlineDevice:
    return InlineDevice(job_s=JOB_S)


async def seeded(host: Host, count: int) -> list:
    """Sessions with contexts of different lengths."""
    sessions = []
    for number in range(count):
        session = host.open(f"s{number}")
        for request in (restore(), seed(seed=number), extend(num_rows=1 + number, seed=number)):
            await session.desk.ask(request)
        sessions.append(session)
    host.drafter.jobs.clear()
    return sessions


def asked(number: int) -> s.DraftBlock:
    """Blocks of different lengths too."""
    return draft(PROMPT_LEN + 1 + number, bonus_id=number, num_drafts=3 + number % 3)


async def drafted(host: Host, sessions: list, *, at_s: dict[int, float] | None = None) -> list:
    """What each gets when all ask while the device is at work on something else."""
    got: list = [None] * len(sessions)
    began_s = trio.current_time()

    async def one(number: int) -> None:
        got[number] = await sessions[number].desk.ask(asked(number))
        if at_s is not None:
            at_s[number] = trio.current_time() - began_s

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.device.run, list)
        for number in range(len(sessions)):
            nursery.start_soon(one, number)
    return got


async def alone(host: Host, sessions: list) -> list:
    return [await each.desk.ask(asked(number)) for number, each in enumerate(sessions)]


@pytest.mark.spec("S-18")
async def test_sessions_that_wait_together_are_drafted_for_in_one_pass(autojump_clock):
    async with hosting(device=slow()) as host:
        expected = await alone(host, await seeded(host, 5))
    async with hosting(device=slow()) as host:
        sessions, at_s = await seeded(host, 5), {}
        assert await drafted(host, sessions, at_s=at_s) == expected
        assert host.drafter.jobs[0] == "draft 5"
        # The job before, and one for all; this device takes its time for the next in the queue.
        assert sorted(at_s.values()) == [2 * JOB_S] * 4 + [3 * JOB_S]
        assert await drafted(host, sessions) == expected, "a repeat costs no work"
        assert len(host.drafter.jobs) == 6


@pytest.mark.spec("S-18")
@pytest.mark.parametrize(("most", "jobs"), [(1, []), (2, ["draft 2"] * 2), (4, ["draft 4"])])
async def test_no_more_than_the_limit_in_one_pass(most, jobs, autojump_clock):
    async with hosting(device=slow(), limits=SessionLimits(max_together=most)) as host:
        sessions = await seeded(host, 5)
        assert None not in await drafted(host, sessions)
        assert [job for job in host.drafter.jobs if job != "draft"] == jobs


@pytest.mark.spec("S-18")
async def test_on_a_thread_too():
    async with hosting(device=thread()) as host:
        expected = await alone(host, await seeded(host, 6))
    async with hosting(device=thread()) as host:
        sessions = await seeded(host, 6)
        assert await drafted(host, sessions) == expected


class Picky(NumpyDrafter):
    """Fails at one bonus, alone or with others."""

    def draft(self, context, context_len, bonus_id, num_drafts):
        if bonus_id == 2:
            raise MemoryError
        return super().draft(context, context_len, bonus_id, num_drafts)


@pytest.mark.spec("S-18", "S-15")
async def test_one_that_fails_fails_alone(autojump_clock):
    async with hosting(device=slow()) as host:
        expected = await alone(host, await seeded(host, 4))
    async with hosting(device=slow(), drafter=Picky()) as host:
        sessions, got = await seeded(host, 4), {}

        async def one(number: int) -> None:
            if number == 2:
                assert (await refused(sessions[2].desk.ask(asked(2))))[0] == "INTERNAL"
            else:
                got[number] = await sessions[number].desk.ask(asked(number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.device.run, list)
            for number in range(4):
                nursery.start_soon(one, number)
        assert host.drafter.jobs[0] == "draft 4"
        assert got == {number: expected[number] for number in (0, 1, 3)}


@pytest.mark.spec("S-18", "S-01")
async def test_a_block_that_is_refused_is_no_other_session_s_matter(autojump_clock):
    drafter = NumpyDrafter()

    def refuses(name: str) -> None:
        if name == "draft 2":
            raise Refused("OUT_OF_RANGE", "one of them is too long")

    drafter.before_job = refuses
    async with hosting(device=slow(), drafter=drafter) as host:
        sessions = await seeded(host, 2)
        assert None not in await drafted(host, sessions)
        assert host.drafter.jobs == ["draft 2", "draft", "draft"]


@pytest.mark.spec("S-18")
async def test_a_session_that_ends_while_it_waits_is_not_drafted_for(autojump_clock):
    device = slow()
    together, drafter = Together(device, SessionLimits()), NumpyDrafter()
    context = drafter.extend(None, 0, seed().aux.rows(0, PROMPT_LEN))
    ask = BlockAsk(context, PROMPT_LEN, 7, 3)
    drafter.jobs.clear()
    scopes = [trio.CancelScope() for _ in range(3)]
    got: list = []

    async def one(scope: trio.CancelScope) -> None:
        with scope:
            got.append(await together.draft(drafter, ask))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, list)
        await trio.sleep(0.1)
        for scope in scopes:
            nursery.start_soon(one, scope)
            await trio.sleep(0.1)  # in this order
        scopes[1].cancel()  # before the pass began
        await trio.sleep(JOB_S)
        scopes[2].cancel()  # while the first one's job runs: its own is in the queue
    assert [scope.cancelled_caught for scope in scopes] == [False, True, True]
    assert drafter.jobs == ["draft"]
    assert len(got) == 1
    assert await together.draft(drafter, ask) == got[0], "nobody is left behind"
    assert (together.num_passes, together.num_drafts) == (2, 2)


@pytest.mark.spec("S-18")
async def test_drafts_of_two_drafters_are_not_mixed(autojump_clock):
    device = slow()
    together, drafters = Together(device, SessionLimits()), [NumpyDrafter() for _ in range(2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, list)
        for drafter in drafters * 2:
            context = drafter.extend(None, 0, seed().aux.rows(0, PROMPT_LEN))
            nursery.start_soon(together.draft, drafter, BlockAsk(context, PROMPT_LEN, 7, 3))
    assert [[j for j in d.jobs if " " in j] for d in drafters] == [["draft 2"]] * 2
    assert together.num_passes == 2


@pytest.mark.spec("S-18")
@pytest.mark.parametrize(("gather_s", "num_passes"), [(0.0, 3), (0.05, 2)])
async def test_the_first_draft_may_wait_for_others(gather_s, num_passes, autojump_clock):
    device = InlineDevice()
    together = Together(device, SessionLimits(gather_s=gather_s))
    drafter = NumpyDrafter()
    context = drafter.extend(None, 0, seed().aux.rows(0, PROMPT_LEN))
    ask = BlockAsk(context, PROMPT_LEN, 7, 3)
    async with trio.open_nursery() as nursery:
        for delay_s in (0.0, 0.03, 0.06):
            nursery.start_soon(later, delay_s, together, drafter, ask)
    assert (together.num_passes, together.num_drafts) == (num_passes, 3)


async def later(delay_s: float, together: Together, drafter: NumpyDrafter, ask: BlockAsk) -> None:
    await trio.sleep(delay_s)
    began_s = trio.current_time()
    await together.draft(drafter, ask)
    assert trio.current_time() - began_s <= 0.05
