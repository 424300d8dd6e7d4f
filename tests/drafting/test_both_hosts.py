"""Host A's half of a session against host B's: one contract, written twice."""

from __future__ import annotations

from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from kakeya.compute.device import InlineDevice
from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.session import Turn, remote_session
from kakeya.decoding.source import DraftFailedError, Place
from kakeya.drafting import session_states as s
from kakeya.rpc.endpoint import Peer
from tests.drafting.session_host import Host, calling, hosting
from tests.drafting.session_requests import aux, draft, extend, restore, seed, seed_of

PLACE = Place("cellar", "there:1", "numpy")
TURN = Turn(tuple(range(20)), sink=2, window=8)


def rows(first: int, num_rows: int) -> tuple[np.ndarray, ...]:
    return tuple(each.bits for each in aux(num_rows, first=first).rows(0, num_rows))


@asynccontextmanager
async def joined(host: Host, *, at_home: bool, name: str = "s"):
    """Host A's half, over a link or in the same node."""
    async with calling(host, whose=Peer("10.0.0.1:1", "porch")) as caller:
        stub = host.service if at_home else caller.stub
        limits = DecodingLimits()
        async with remote_session(
            PLACE, stub, session_id=name, dtype="float32", limits=limits
        ) as session:
            yield session


async def alone(host: Host, ends: list[int], bonus_id: int) -> list[tuple[int, ...]]:
    """What a session drafts behind each of `ends` when nobody is in its way."""
    session = host.open("alone", "x")
    await session.desk.ask(restore(TURN.prompt_ids))
    await session.desk.ask(seed(20))
    made, at = [], 20
    for end in ends:
        if end > at:
            await session.desk.ask(extend(at, end - at))
        made.append((await session.desk.ask(draft(end, bonus_id=bonus_id))).ids)
        at = end
    await session.desk.ask(s.CloseSession())
    return made


@pytest.mark.spec("S-05", "S-08")
@pytest.mark.parametrize("at_home", [False, True])
@pytest.mark.parametrize("job_s", [0.0, 0.01])
async def test_a_turn_driven_by_host_a(at_home, job_s, autojump_clock):
    async with hosting(device=InlineDevice(job_s)) as host:
        expected = await alone(host, [20, 22, 25, 26], 7)
        async with joined(host, at_home=at_home) as session:
            banks = await session.restore(TURN)
            assert [bank.layer for bank in banks] == [0, 1]
            assert banks[0].k.shape == (10, 2, 4)
            await session.feed(rows(0, 12))
            await session.feed(rows(12, 8))
            made = [await session.draft(7, 3, None)]
            for first, num_rows in ((20, 2), (22, 3), (25, 1)):
                made.append(await session.draft(7, 3, rows(first, num_rows)))
            assert made == expected
            assert (session.context_len, session.is_certain) == (26, True)
        assert host.sessions.counts().closed[s.Ending.CLOSED] == 2


@pytest.mark.spec("S-14")
@pytest.mark.parametrize("at_home", [False, True])
async def test_drafts_given_up_at_any_time_leave_the_session_usable(at_home, autojump_clock):
    """As host A does when a draft is late: what was sent is sent again, or was there already."""
    rng = seed_of()
    async with (
        hosting(device=InlineDevice(0.01)) as host,
        joined(host, at_home=at_home) as session,
    ):
        await session.restore(TURN)
        await session.feed(rows(0, 20))
        at, num_late = 20, 0
        for _ in range(40):
            num_rows = rng.randint(1, 3)
            end, made = at + num_rows, None
            with trio.move_on_after(rng.uniform(0, 0.06)):
                made = await session.draft(7, 3, rows(at, num_rows))
            if made is None:
                num_late += 1
                first = session.context_len
                if first < end:
                    await session.feed(rows(first, end - first))
                made = await session.draft(7, 3, None)
            assert made == (await alone(host, [end], 7))[0]
            at = end
        assert 0 < num_late < 40


async def test_a_session_that_is_gone_is_a_failure_with_its_reason(autojump_clock):
    async with hosting() as host, joined(host, at_home=True) as session:
        await session.restore(TURN)
        await trio.sleep(31)
        with pytest.raises(DraftFailedError, match="idle 30 s in Restored, 1 s ago") as caught:
            await session.feed(rows(0, 20))
        assert caught.value.reason == "not_found"
