"""Requests that come in the wrong order, twice, or after their time."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.drafting import session_states as s
from tests.drafting.session_host import PEER, hosting, refused
from tests.drafting.session_requests import draft, extend, restore, seed_of

EARLY = SessionLimits(early_s=2.0)


async def both(session, first, second, *, gap_s=0.0):
    """The replies to two requests that are under way together."""
    replies = {}

    async def ask(request):
        replies[request] = await session.desk.ask(request)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, first)
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(gap_s)
        nursery.start_soon(ask, second)
    return replies[first], replies[second]


@pytest.mark.spec("S-08")
@pytest.mark.parametrize("state", [s.Seeded, s.Drafting])
@pytest.mark.parametrize("gap_s", [0.0, 1.9])
@pytest.mark.parametrize("job_s", [0.0, 0.5])
async def test_extend_and_draft_may_arrive_in_either_order(state, gap_s, job_s, autojump_clock):
    async with hosting(limits=EARLY, device=InlineDevice(job_s)) as host:
        ahead, behind = await host.at(state, "a"), await host.at(state, "b")
        made = await both(ahead, draft(8), extend(6, 2), gap_s=gap_s)
        assert made == (await both(behind, extend(6, 2), draft(8), gap_s=gap_s))[::-1]
        assert (made[1], len(made[0].ids)) == (8, 3)


@pytest.mark.spec("S-08")
async def test_blocks_sent_side_by_side_all_come_back_in_whatever_order_tasks_run(autojump_clock):
    """As host A sends them: the rows of a block and the draft of the next leave together."""
    rng = seed_of()
    async with hosting(limits=EARLY, device=InlineDevice(0.01)) as host:
        session, alone = await host.at(s.Drafting), await host.at(s.Drafting, "alone")
        at = 6
        for num_rows in itertools.islice(itertools.cycle((1, 3, 2)), 30):
            pair = [extend(at, num_rows), draft(at + num_rows)]
            expected = [await alone.desk.ask(each) for each in pair]
            order = rng.sample((0, 1), 2)
            made = await both(session, *(pair[i] for i in order))
            assert [made[order.index(i)] for i in (0, 1)] == expected
            at += num_rows


@pytest.mark.spec("S-08")
@pytest.mark.parametrize("request_", [draft(8), extend(8, 1)])
async def test_what_fills_no_gap_in_time_is_refused_naming_both(request_, autojump_clock):
    async with hosting(limits=EARLY) as host:
        session = await host.at(s.Seeded)
        status, why = await refused(session.desk.ask(request_))
        assert status == "FAILED_PRECONDITION"
        assert "context_len is 6" in why
        assert "8" in why
        assert trio.current_time() == 2.0


@pytest.mark.spec("S-08")
async def test_only_one_request_a_session_may_lie_ahead(autojump_clock):
    async with hosting(limits=EARLY) as host:
        session = await host.at(s.Seeded)
        answers = []

        async def first():
            answers.append(await session.desk.ask(draft(8)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            for second in (draft(9), extend(7, 1), draft(8)):
                assert await refused(session.desk.ask(second)) == (
                    "RESOURCE_EXHAUSTED",
                    "one request ahead of the context waits already, which is the limit",
                )
            assert trio.current_time() == 0.0
            assert await session.desk.ask(extend(6, 2)) == 8
        assert len(answers) == 1


@pytest.mark.spec("S-08")
async def test_what_lies_behind_is_refused_at_once(autojump_clock):
    async with hosting(limits=EARLY) as host:
        session = await host.at(s.Seeded)
        assert (await refused(session.desk.ask(draft(5))))[0] == "FAILED_PRECONDITION"
        assert (await refused(session.desk.ask(extend(5, 2))))[0] == "FAILED_PRECONDITION"
        assert trio.current_time() == 0.0


@pytest.mark.spec("S-08")
async def test_the_place_ahead_is_free_again_when_its_caller_leaves(autojump_clock):
    async with hosting(limits=EARLY) as host:
        session = await host.at(s.Seeded)
        with trio.move_on_after(0.5):
            await session.desk.ask(draft(9))
        made, _ = await both(session, draft(8), extend(6, 2))
        assert len(made.ids) == 3


@pytest.mark.spec("S-08")
@pytest.mark.parametrize(
    ("between", "words"),
    [
        (restore([1, 2]), "DraftBlock in state Restored"),
        (extend(6, 4), "context_len is 10, the request says 8"),
        (s.CloseSession(), "has ended: closed by its client"),
    ],
)
async def test_what_comes_between_decides_over_what_waits(between, words, autojump_clock):
    async with hosting(limits=EARLY) as host:
        session = await host.at(s.Seeded)
        told = []

        async def early():
            told.append(await refused(session.desk.ask(draft(8))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(early)
            await trio.testing.wait_all_tasks_blocked()
            await session.desk.ask(between)
        assert words in told[0][1]
        assert trio.current_time() == 0.0


@pytest.mark.spec("S-08", "S-11")
async def test_what_waits_does_not_keep_a_session_alive(autojump_clock):
    limits = SessionLimits(early_s=50.0, seeded_s=7.0)
    async with hosting(limits=limits) as host:
        session = await host.at(s.Seeded)
        status, why = await refused(session.desk.ask(draft(8)))
        assert (status, why) == ("NOT_FOUND", "session 's' has ended: idle 7 s in Seeded")
        assert host.sessions.find("s", PEER) is None


@pytest.mark.spec("S-07")
async def test_close_is_answered_however_often_it_is_asked(autojump_clock):
    async with hosting(device=InlineDevice(1.0)) as host:
        session = await host.at(s.Seeded)
        told = []

        async def late():
            told.append(await refused(session.desk.ask(draft())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.desk.ask, draft(bonus_id=1))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                nursery.start_soon(session.desk.ask, s.CloseSession())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(late)
        assert told == [("NOT_FOUND", "session 's' has ended: closed by its client")]


@pytest.mark.spec("S-07")
async def test_every_reply_that_was_lost_can_be_asked_again(autojump_clock):
    async with hosting() as host:
        session = await host.at(s.Drafting)
        first = await session.desk.ask(draft())
        assert await session.desk.ask(draft()) == first
        assert await session.desk.ask(extend()) == 8
        assert await session.desk.ask(extend()) == 8
        assert host.drafter.jobs.count("draft") == host.drafter.jobs.count("extend") - 1 == 1
