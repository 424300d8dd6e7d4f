"""Who may open a session, whose it is, what is remembered of it, and what is given back."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.drafting import session_states as s
from tests.drafting.numpy_drafter import NumpyDrafter
from tests.drafting.session_host import PEER, hosting, refused
from tests.drafting.session_requests import PATHS, draft, extend, restore, seed

ANYBODY = "connection 10.0.0.9:1234"


async def opening(host, name: str, peer: str = PEER):
    return host.open(name, peer)


async def getting(host, name: str, peer: str = PEER):
    return host.sessions.get(name, peer)


@pytest.mark.spec("S-12")
async def test_sessions_of_node_and_peer_are_bounded(autojump_clock):
    limits = SessionLimits(max_sessions=3, max_sessions_per_peer=2)
    async with hosting(limits=limits) as host:
        one = host.open("a")
        host.open("b")
        assert await refused(opening(host, "c")) == (
            "RESOURCE_EXHAUSTED",
            "2 sessions are open, the limit for one peer is 2",
        )
        host.open("c", ANYBODY)
        assert await refused(opening(host, "d", "name porch")) == (
            "RESOURCE_EXHAUSTED",
            "3 sessions are open, the limit for this node is 3",
        )
        await one.desk.ask(s.CloseSession())
        host.open("d", "name porch")
        assert host.sessions.counts().num_sessions == 3


@pytest.mark.spec("S-12")
async def test_bytes_of_one_context_and_of_all_are_bounded_before_any_work(autojump_clock):
    step = NumpyDrafter().context_bytes(1)
    limits = SessionLimits(max_session_bytes=2 * step, max_node_bytes=3 * step)
    async with hosting(limits=limits) as host:
        first = await host.at(s.Seeded, "first")
        await first.desk.ask(extend(6, 100))
        host.drafter.jobs.clear()
        assert await refused(first.desk.ask(extend(106, 30))) == (
            "RESOURCE_EXHAUSTED",
            f"the context would take {3 * step} bytes, the limit for one session is {2 * step}",
        )
        second = await host.at(s.Restored, "second")
        assert host.sessions.counts().num_bytes == 3 * step
        host.drafter.jobs.clear()
        third = host.open("third")
        assert await refused(third.desk.ask(restore())) == (
            "RESOURCE_EXHAUSTED",
            f"the context would take {step} bytes more, all contexts of this node hold {3 * step}"
            f" and the limit is {3 * step}",
        )
        assert host.drafter.jobs == []
        await second.desk.ask(s.CloseSession())
        assert await (await host.at(s.Seeded, "third")).desk.ask(draft())
        assert host.sessions.counts().num_bytes == 3 * step


@pytest.mark.spec("S-02", "S-12")
async def test_what_a_failed_request_reserved_is_given_back(autojump_clock):
    async with hosting() as host:
        session = await host.at(s.Seeded)
        before = host.sessions.counts().num_bytes

        def fails(name):
            raise MemoryError

        host.drafter.before_job = fails
        for request in (extend(6, 100), restore([1] * 300)):
            await refused(session.desk.ask(request))
            await trio.testing.wait_all_tasks_blocked()
            assert host.sessions.counts().num_bytes == before


@pytest.mark.spec("S-04", "S-12")
async def test_a_new_turn_reserves_what_its_prompt_needs(autojump_clock):
    async with hosting() as host:
        session = await host.at(s.Drafting)
        await session.desk.ask(extend(6, 200))
        large = host.sessions.counts().num_bytes
        await session.desk.ask(restore([1, 2, 3]))
        assert host.sessions.counts().num_bytes == host.drafter.context_bytes(3) < large
        await session.desk.ask(seed(3))
        assert await session.desk.ask(draft(3))


@pytest.mark.spec("S-12")
async def test_requests_at_one_desk_are_bounded(autojump_clock):
    limits = SessionLimits(max_waiting_requests=3)
    async with hosting(limits=limits, device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.desk.ask, draft())
            await trio.testing.wait_all_tasks_blocked()
            for bonus_id in range(3):
                nursery.start_soon(session.desk.ask, draft(bonus_id=bonus_id))
            await trio.testing.wait_all_tasks_blocked()
            assert await refused(session.desk.ask(draft())) == (
                "RESOURCE_EXHAUSTED",
                "3 requests wait for this session, which is the limit",
            )


@pytest.mark.spec("S-09")
async def test_a_session_does_not_exist_for_anybody_else(autojump_clock):
    async with hosting() as host:
        session = await host.at(s.Drafting)
        foreign = [await refused(getting(host, "s", ANYBODY))]
        await session.desk.ask(s.CloseSession())
        foreign.append(await refused(getting(host, "s", ANYBODY)))
        foreign.append(await refused(getting(host, "s", "name link")))
        assert foreign == [("NOT_FOUND", "no session 's' here")] * 3
        assert "closed by its client, 0 s ago" in (await refused(getting(host, "s")))[1]


@pytest.mark.spec("S-10")
async def test_the_dead_are_remembered_for_a_while_and_not_too_many(autojump_clock):
    limits = SessionLimits(tombstone_s=10.0, max_tombstones=2)
    async with hosting(limits=limits) as host:
        for name in "abc":
            await host.open(name).desk.ask(s.CloseSession())
            await trio.sleep(1)
        assert await refused(getting(host, "a")) == ("NOT_FOUND", "no session 'a' here")
        assert "closed by its client, 2 s ago" in (await refused(getting(host, "b")))[1]
        await trio.sleep(8.5)
        assert await refused(getting(host, "b")) == ("NOT_FOUND", "no session 'b' here")
        await host.open("d").desk.ask(s.CloseSession())
        assert list(host.sessions._tombstones) == ["c", "d"]
        await trio.sleep(11)
        await host.open("e").desk.ask(s.CloseSession())
        assert list(host.sessions._tombstones) == ["e"]


@pytest.mark.spec("S-10")
async def test_a_name_may_be_used_again(autojump_clock):
    async with hosting() as host:
        for _ in range(3):
            session = await host.at(s.Drafting)
            await session.desk.ask(s.CloseSession())
        await host.at(s.Seeded)
        assert host.sessions.get("s", PEER)


@pytest.mark.spec("S-10")
async def test_a_name_of_a_megabyte_is_not_repeated(autojump_clock):
    async with hosting() as host:
        _, why = await refused(getting(host, "x" * 1_000_000))
        assert len(why) < 200


@pytest.mark.spec("S-16")
async def test_while_the_node_drains_none_is_opened_and_those_open_go_on(autojump_clock):
    async with hosting() as host:
        session = await host.at(s.Seeded)
        host.sessions.stop_admitting()
        assert await refused(opening(host, "t")) == ("UNAVAILABLE", "the node is stopping")
        assert await session.desk.ask(draft())
        assert await session.desk.ask(extend()) == 8
        await session.desk.ask(s.CloseSession())


@pytest.mark.spec("S-16")
async def test_at_the_end_of_the_drain_who_waits_is_told(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        told, started_s = [], trio.current_time()

        async def ask(request):
            told.append(await refused(session.desk.ask(request)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, extend(6, 40))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask, draft())
            await trio.testing.wait_all_tasks_blocked()
            host.owners.cancel()
        assert told == [("UNAVAILABLE", "the node is stopping")] * 2
        assert trio.current_time() == started_s + 1.0  # the job under way has ended
    assert host.sessions.counts().closed[s.Ending.STOPPED] == 1
    assert host.sessions.counts().num_bytes == 0


@pytest.mark.spec("S-16")
async def test_the_last_job_of_a_drain_is_answered(autojump_clock):
    async with hosting(device=InlineDevice(job_s=1.0)) as host:
        session = await host.at(s.Seeded)
        made = []

        async def ask():
            made.append(await session.desk.ask(draft()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            host.owners.cancel()
        assert len(made[0].ids) == 3


@pytest.mark.spec("S-17")
async def test_what_is_open_held_and_ended_is_counted_from_zero(autojump_clock):
    limits = SessionLimits(life_s=100.0)
    async with hosting(limits=limits) as host:
        counts = host.sessions.counts()
        assert (counts.num_sessions, counts.num_bytes) == (0, 0)
        assert counts.closed == dict.fromkeys(s.Ending, 0)
        for state in PATHS:
            await host.at(state, state.__name__)
        counts = host.sessions.counts()
        assert (counts.num_sessions, counts.num_bytes) == (4, 3 * host.drafter.context_bytes(6))
        await host.sessions.get("Opened", PEER).desk.ask(s.CloseSession())
        await refused(host.open("none").desk.ask(restore(())))
        await trio.sleep(61)
        counts = host.sessions.counts()
        assert (counts.num_sessions, counts.num_bytes) == (0, 0)
        assert counts.closed == dict.fromkeys(s.Ending, 0) | {
            s.Ending.CLOSED: 1,
            s.Ending.RESTORE_FAILED: 1,
            s.Ending.IDLE: 3,
        }


async def test_nothing_is_admitted_before_sessions_run():
    async with hosting() as host:
        pass
    assert (await refused(opening(host, "s")))[0] == "UNAVAILABLE"
