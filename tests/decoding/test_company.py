"""Many generations on one verifier: whose turn it is, what others cost, and that no id changes."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from kakeya.compute.device import InlineDevice, ThreadDevice
from kakeya.config.decoding import DecodingLimits
from kakeya.decoding import Sampling, decode, engine_of
from kakeya.decoding.policy import Acceptance, Pace, Round, best_choice
from tests.decoding.test_loop import ATTIC, PROMPT, off_by_one, oracle
from tests.decoding.toy import (
    FakeSource,
    ToyVerifier,
    engine_for,
    failing,
    peers_of,
    rough_table,
    run,
)

PROMPTS = [PROMPT, PROMPT[::-1], (7,), (2, 2, 2, 2), PROMPT * 9, (5, 11)]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=5), Sampling(temperature=1.2, seed=9)]
PROPOSERS = {
    "right": (oracle(1), 0.002),
    "sometimes": (oracle(1, wrong_every=3), 0.01),
    "wrong": (off_by_one, 0.002),
    "late": (oracle(1), 0.06),
    "dead": (failing("unavailable"), 0.002),
}


@asynccontextmanager
async def inline():
    yield InlineDevice(job_s=0.002)


@asynccontextmanager
async def thread():
    device = ThreadDevice(name="toy", max_waiting=64)
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        yield device
        nursery.cancel_scope.cancel()


def mixed_requests():
    """Every prompt with another sampling and another proposer than its neighbour."""
    pairs = zip(PROMPTS, itertools.cycle(SAMPLINGS), itertools.cycle(PROPOSERS), strict=False)
    return list(enumerate(pairs))


async def all_at_once(engine):
    found = {}

    async def one(number, prompt, sampling, proposer):
        answer, trip_s = PROPOSERS[proposer]
        source = FakeSource(ATTIC, answer, lambda: trip_s)
        options = {"max_tokens": 60, "sampling": sampling, "num_drafts": 3}
        outcome = await run(engine, prompt, peers_of(engine, source), **options)
        found[number] = outcome.ids
        assert proposer != "right" or outcome.tally.num_drafts > 0

    async with trio.open_nursery() as nursery:
        for number, request in mixed_requests():
            nursery.start_soon(one, number, *request)
    return found


async def each_alone():
    engine = engine_for(ToyVerifier(rough_table(1)), lambda block_len: 0.0)
    return {
        number: (await run(engine, prompt, max_tokens=60, sampling=sampling, plain=True)).ids
        for number, (prompt, sampling, _) in mixed_requests()
    }


@pytest.mark.spec("D-11", "D-13")
async def test_ids_at_once_are_those_alone_whoever_drafts(autojump_clock):
    verifier = ToyVerifier(rough_table(1), drift=1e-4, margin_bound=2e-4)
    assert await all_at_once(engine_for(verifier)) == await each_alone()


@pytest.mark.spec("D-11")
async def test_ids_at_once_are_those_alone_on_a_real_thread():
    verifier = ToyVerifier(rough_table(1), drift=1e-4, margin_bound=2e-4)
    async with thread() as device:
        assert await all_at_once(engine_of(verifier, device)) == await each_alone()


@pytest.mark.spec("D-28")
@pytest.mark.parametrize("on", [inline, thread])
async def test_who_waits_for_a_job_waits_for_at_most_one_of_every_other(on):
    """Eight who always ask again at once: two long prompts and six texts would do just that."""
    served: list[int] = []
    waits: list[list[int]] = []
    async with on() as device:

        async def asks(who: int) -> None:
            for _ in range(10):
                asked_at = len(served)
                served_at = await device.run(lambda: served.append(who) or len(served) - 1)
                waits.append(served[asked_at:served_at])

        async with trio.open_nursery() as nursery:
            for who in range(8):
                nursery.start_soon(asks, who)
    assert all(len(wait) == len(set(wait)) for wait in waits)
    assert max(map(len, waits)) >= 6


@pytest.mark.spec("D-28", "D-12")
async def test_a_long_prompt_is_read_between_the_blocks_of_others(autojump_clock):
    verifier = ToyVerifier(rough_table(1))
    engine = engine_of(verifier, InlineDevice(job_s=0.01))
    times_s: list[float] = []

    async def speaks() -> None:
        async for block in decode(engine, PROMPT, max_tokens=30, plain=True):
            times_s.append(trio.current_time())
            assert block.ids

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speaks)
        await trio.sleep(0.05)
        await run(engine, (1, 2, 3, 4) * 20, max_tokens=2, plain=True)
    # Its own block, and one chunk of the prompt.
    assert max(b - a for a, b in itertools.pairwise(times_s)) < 0.021
    assert len(verifier.prefills) > 20


async def test_a_job_that_waits_can_be_left_and_one_that_runs_cannot():
    done: list[str] = []
    began, may_end = trio.Event(), trio.Event()

    def long() -> None:
        trio.from_thread.run_sync(began.set)
        trio.from_thread.run(may_end.wait)
        done.append("long")

    async with thread() as device, trio.open_nursery() as nursery:
        running = trio.CancelScope()

        async def leaves() -> None:
            with running:
                await device.run(long)

        nursery.start_soon(leaves)
        with trio.fail_after(5):
            await began.wait()
            with trio.move_on_after(0.01) as waiting:
                await device.run(done.append, "left")
            assert waiting.cancelled_caught
            running.cancel()
            may_end.set()
            await device.run(done.append, "last")
    assert done == ["long", "last"]


@pytest.mark.spec("D-29")
def test_a_step_counts_without_the_work_for_others():
    assert Round(elapsed_s=0.5, job_s=0.1, others_s=0.3).own_s == pytest.approx(0.2)
    assert Round(elapsed_s=0.5, job_s=0.1, others_s=0.0).own_s == pytest.approx(0.5)
    assert Round(elapsed_s=0.5, job_s=0.1, others_s=0.45).own_s == pytest.approx(0.1)


@pytest.mark.spec("D-29")
def test_a_wait_that_others_fill_is_free():
    limits = DecodingLimits()
    alone, busy = Pace(limits), Pace(limits)
    for pace in (alone, busy):
        pace.add(1, 0.01)
        pace.add(4, 0.012)
    for _ in range(8):
        alone.add_round(Round(0.05, 0.01, 0.0))
        busy.add_round(Round(0.05, 0.01, 0.04))
    assert (alone.company, busy.company) == (0.0, pytest.approx(1.0))
    acceptance = Acceptance(0.8)
    asked = {"draft_s": 0.05, "max_num_drafts": 3}
    assert best_choice(alone, acceptance, **asked).num_drafts == 0
    assert best_choice(busy, acceptance, **asked).num_drafts == 3


@pytest.mark.spec("D-29")
async def test_what_others_do_is_not_in_a_steps_time(autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)), lambda block_len: 0.05)
    async with trio.open_nursery() as nursery:
        for prompt in PROMPTS:
            nursery.start_soon(partial(run, engine, prompt, max_tokens=200, plain=True))
        await trio.sleep(20)
        assert engine.pace.one_s == pytest.approx(0.05)
        assert engine.pace.company > 0.9
        nursery.cancel_scope.cancel()
