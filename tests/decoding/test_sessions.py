"""The loop drafting in sessions: whatever happens to them, the ids are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.aux_log import AuxLog
from kakeya.decoding.block import Block
from kakeya.decoding.failover import Circuits, Peers
from kakeya.decoding.keeper import Course, Keeper
from kakeya.decoding.session import Turn, pieces, remote_session
from kakeya.decoding.source import DflashFit, DraftFailedError, Place
from kakeya.errors import Refused, demand
from kakeya.verifying.verifier import KvPlan
from tests.decoding.scripted import AUX_LAYERS, ScriptedDrafter
from tests.decoding.toy import (
    Outcome,
    ToyVerifier,
    engine_for,
    plain_run,
    rough_table,
    run,
    run_after,
)

FIT = DflashFit(aux_layers=AUX_LAYERS, max_context_len=4096, max_num_drafts=7)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
TABLE = rough_table(7)


class World:
    """Drafters by node_id, and the peers that lead to them."""

    def __init__(self, limits: DecodingLimits, **drafters: ScriptedDrafter) -> None:
        self.drafters = drafters
        self.fit = FIT
        self.heard_unix = 1.0
        self.keeper = Keeper(
            open_stub=lambda place: self.drafters[place.node_id],
            limits=limits,
            rng=random.Random(5),
        )
        self.peers = Peers(self.places, self._none, Circuits(limits), self.keeper)

    def places(self) -> list[Place]:
        return [
            Place(name, f"{name}:1", "drafter", self.fit, self.heard_unix) for name in self.drafters
        ]

    @staticmethod
    def _none(place: Place) -> Any:
        raise AssertionError(place)


@asynccontextmanager
async def world(
    limits: DecodingLimits | None = None, **drafters: ScriptedDrafter
) -> AsyncIterator[World]:
    made = World(limits or DecodingLimits(), **drafters)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.keeper.serve)
        yield made
        nursery.cancel_scope.cancel()


async def drafted_run(made: World, *, max_tokens: int = 200, **options: Any) -> Outcome:
    engine = engine_for(ToyVerifier(TABLE, prefill_chunk_len=64))
    options.setdefault("draft_on", "remote")
    return await run(engine, PROMPT, made.peers, max_tokens=max_tokens, **options)


def drafted_blocks(outcome: Outcome) -> int:
    return sum(block.proposer == "drafter" for block in outcome.blocks)


def last_drafted(outcome: Outcome) -> Block:
    return [block for block in outcome.blocks if block.num_drafts][-1]


@pytest.mark.spec("D-20", "D-25")
async def test_a_session_drafts_from_committed_aux_and_is_closed(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made)
        await trio.sleep(1)
    assert outcome.ids == run_after(PROMPT, TABLE, 200)
    assert drafted_blocks(outcome) > 20
    assert outcome.tally.mean_acceptance_length > 6
    assert outcome.tally.fallbacks == {}
    assert drafter.sessions == {}


@pytest.mark.spec("D-21")
async def test_aux_and_the_next_draft_leave_together(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made)
    drafts = [at for name, at in drafter.times if name == "DraftBlock"]
    extends = {at for name, at in drafter.times if name == "ExtendContext"}
    assert len(drafts) == drafted_blocks(outcome)
    assert len(set(drafts) & extends) >= len(drafts) - 2


@pytest.mark.spec("D-08", "D-20")
async def test_a_sessions_context_ends_before_a_stop_id_in_the_middle_of_a_block(autojump_clock):
    want = run_after(PROMPT, TABLE, 200)
    stop_id = max(set(want), key=want.index)  # the one that comes first as late as can be
    at = want.index(stop_id)
    contexts: list[list[int]] = []
    drafter = ScriptedDrafter(TABLE)

    def note(name: str, number: int) -> None:
        if name == "CloseSession":
            contexts.extend(held.ids for held in drafter.sessions.values())

    drafter.breaks = note
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made, stop_ids={stop_id})
        await trio.sleep(1)
    assert (outcome.ids, outcome.finish_reason) == (want[: at + 1], "stop")
    assert outcome.blocks[-1].num_drafts > len(outcome.blocks[-1].ids)  # it fell inside the block
    [context] = contexts
    assert context == [*PROMPT, *want][: len(context)]
    assert len(PROMPT) < len(context) <= len(PROMPT) + at


class Restarted(Exception):
    pass


@pytest.mark.spec("D-22", "D-23")
@pytest.mark.parametrize("call", ["Restore", "SeedContext", "ExtendContext", "DraftBlock"])
@pytest.mark.parametrize("number", [1, 3])
async def test_a_drafter_killed_in_any_call_costs_no_id(call, number, autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    down_until_s = [0.0]

    def breaks(name: str, count: int) -> None:
        if name == call and count == number:
            drafter.forget_all()
            down_until_s[0] = trio.current_time() + 1.0
        if trio.current_time() < down_until_s[0]:
            raise OSError("connection reset")

    drafter.breaks = breaks
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made, max_tokens=300)
    assert outcome.ids == run_after(PROMPT, TABLE, 300)
    if number == 1 or call in ("ExtendContext", "DraftBlock"):
        assert outcome.tally.fallbacks.get("unavailable", 0) >= 1
    assert last_drafted(outcome).proposer == "drafter", "it is taken back"


@pytest.mark.spec("D-22")
@pytest.mark.parametrize("call", ["SeedContext", "ExtendContext", "DraftBlock"])
async def test_a_lost_reply_is_asked_for_again(call, autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    drafter.loses_reply = lambda name, count: name == call and count == 1
    async with world(replace(DecodingLimits(), seed_s=0.5), barn=drafter) as made:
        outcome = await drafted_run(made, max_tokens=300)
    assert outcome.ids == run_after(PROMPT, TABLE, 300)
    assert last_drafted(outcome).proposer == "drafter"


@pytest.mark.spec("D-23")
async def test_the_next_place_takes_over_and_the_better_one_is_taken_back(autojump_clock):
    first, second = ScriptedDrafter(TABLE), ScriptedDrafter(TABLE)
    down = {"from": 1.0, "to": 4.0}

    def breaks(name: str, count: int) -> None:
        if down["from"] <= trio.current_time() < down["to"]:
            first.forget_all()
            raise OSError("connection refused")

    first.breaks = breaks
    async with world(barn=first, attic=second) as made:
        outcome = await drafted_run(made, max_tokens=900)
    assert outcome.ids == run_after(PROMPT, TABLE, 900)
    order = [block.drafted_on for block in outcome.blocks if block.drafted_on]
    assert order[0] == "barn"
    assert "attic" in order
    assert order[-1] == "barn"


@pytest.mark.spec("D-23")
async def test_news_of_a_restart_opens_a_session_at_once(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    limits = replace(DecodingLimits(), session_backoff_s=1000, max_session_backoff_s=1000)
    limits = replace(limits, places_every_s=0.1)
    broken = [True]

    def breaks(name: str, count: int) -> None:
        if broken[0]:
            raise OSError("connection refused")

    drafter.breaks = breaks
    async with world(limits, barn=drafter) as made:

        async def come_back() -> None:
            await trio.sleep(2)
            broken[0] = False
            made.heard_unix = 2.0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            outcome = await drafted_run(made, max_tokens=300)
    first = [block.proposer for block in outcome.blocks].index("drafter")
    started_s = sum(block.verify_s + block.draft_s for block in outcome.blocks[:first])
    assert 2 < started_s < 3.5, "back within 20 blocks of 75 ms"


@pytest.mark.spec("D-20")
async def test_a_session_on_its_way_costs_no_waiting(autojump_clock):
    drafter = ScriptedDrafter(TABLE, trip_s=1.0)
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made, max_tokens=100)
    plain = await plain_run(TABLE, PROMPT, max_tokens=100)
    assert outcome.ids == plain.ids
    assert outcome.elapsed_s < 1.05 * plain.elapsed_s


@pytest.mark.spec("D-20")
async def test_a_drafter_that_appears_late_is_seeded_by_reading_again(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world() as made:

        async def appear() -> None:
            await trio.sleep(3)
            made.drafters["barn"] = drafter

        async with trio.open_nursery() as nursery:
            nursery.start_soon(appear)
            outcome = await drafted_run(made, max_tokens=300)
    assert outcome.ids == run_after(PROMPT, TABLE, 300)
    assert drafted_blocks(outcome) > 3


@pytest.mark.spec("D-35")
async def test_a_session_is_seeded_with_its_prompt_and_extended_with_the_rest(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    # Before anything is seeded more is said than the prompt was long.
    drafter.breaks = lambda name, number: demand(
        name != "Restore" or trio.current_time() > 3, "UNAVAILABLE", "not yet"
    )
    async with world(barn=drafter) as made:
        outcome = await drafted_run(made, max_tokens=300)
    assert set(outcome.tally.fallbacks) <= {"unavailable"}
    assert drafted_blocks(outcome) > 3


@pytest.mark.spec("D-20")
async def test_aux_beyond_the_log_is_computed_again(autojump_clock):
    first, second = ScriptedDrafter(TABLE), ScriptedDrafter(TABLE)
    limits = replace(DecodingLimits(), max_aux_bytes=32 * 20)  # 20 positions

    def breaks(name: str, count: int) -> None:
        if trio.current_time() > 2.0:
            raise OSError("gone")

    first.breaks = breaks
    async with world(limits, barn=first, attic=second) as made:
        outcome = await drafted_run(made, max_tokens=400)
    assert outcome.ids == run_after(PROMPT, TABLE, 400)
    assert last_drafted(outcome).drafted_on == "attic"


@pytest.mark.spec("D-24")
async def test_the_n_gram_is_asked_where_two_tokens_match(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        engine = engine_for(ToyVerifier(TABLE))
        prompt = [*PROMPT, *run_after(PROMPT, TABLE, 40)][:30]
        outcome = await run(engine, prompt, made.peers, max_tokens=200, num_drafts=3)
    assert {block.proposer for block in outcome.blocks} >= {"ngram", "drafter"}
    assert outcome.ids == run_after(prompt, TABLE, 200)


async def test_a_drafters_short_context_ends_its_drafts_and_nothing_else(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        made.fit = replace(FIT, max_context_len=60)
        outcome = await drafted_run(made, max_tokens=150)
    assert outcome.ids == run_after(PROMPT, TABLE, 150)
    past = 0
    for block in outcome.blocks:
        past += len(block.ids)
        assert block.proposer != "drafter" or len(PROMPT) + past <= 61
    assert drafted_blocks(outcome) > 3


@pytest.mark.parametrize("num_drafts", [1, 2, 5, 7, 16])
async def test_ids_do_not_depend_on_the_block_length(num_drafts, autojump_clock):
    async with world(barn=ScriptedDrafter(TABLE)) as made:
        outcome = await drafted_run(made, num_drafts=num_drafts)
    assert outcome.ids == run_after(PROMPT, TABLE, 200)
    drafted = [block.num_drafts for block in outcome.blocks if block.proposer == "drafter"]
    assert max(drafted) == min(num_drafts, 7)


async def test_a_wrong_drafter_changes_no_id_and_is_left_alone(autojump_clock):
    async with world(barn=ScriptedDrafter(rough_table(8))) as made:
        outcome = await drafted_run(made)
    plain = await plain_run(TABLE, PROMPT, max_tokens=200)
    assert outcome.ids == plain.ids
    assert outcome.elapsed_s < 1.1 * plain.elapsed_s


@pytest.mark.spec("D-25")
async def test_a_caller_that_leaves_closes_the_session(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        with trio.move_on_after(2):
            await drafted_run(made, max_tokens=4000)
        assert drafter.sessions
        await trio.sleep(0.1)
        assert drafter.sessions == {}


@pytest.mark.spec("D-25")
async def test_sessions_held_at_once_are_bounded(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    limits = replace(DecodingLimits(), max_held_sessions=2)
    async with world(limits, barn=drafter) as made, trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(drafted_run, made)
        await trio.sleep(2)
        assert len(drafter.sessions) == 2


@pytest.mark.spec("D-23")
async def test_a_draft_that_waits_behind_rows_that_are_lost_fails_with_them(autojump_clock):
    drafter = ScriptedDrafter(TABLE, trip_s=1.0)
    # Two rows a message: a session that catches up is usable before its last message is served.
    limits = replace(DecodingLimits(), max_aux_message_bytes=64, max_lag_len=4)
    ids = [*PROMPT, *run_after(PROMPT, TABLE, 30)]
    aux = AuxLog(max_bytes=1 << 20)
    aux.tap(AUX_LAYERS, 0)

    def read(first: int, end: int) -> None:
        aux.add((np.repeat(np.array(ids[first:end], np.float32)[:, None], 8, axis=1),))

    def breaks(name: str, count: int) -> None:
        demand(name != "ExtendContext" or aux.end < 20, "UNAVAILABLE", "gone")

    async with world(limits, barn=drafter) as made:
        read(0, 9)
        held = made.keeper.hold(
            made.places()[0], Course(tuple(PROMPT), aux, "float32", recall=no_recall)
        )
        await trio.sleep(10)
        assert held.is_usable
        read(9, 19)
        held.grew()
        await trio.sleep(4.2)  # four of five messages are served, the last one is on its way
        assert held.is_usable
        read(19, 21)  # rows that a draft would send with it
        drafter.breaks = breaks
        with pytest.raises(DraftFailedError):
            await held.draft(ids[:22], 3)


async def no_recall(end, layers):
    raise AssertionError((end, layers))
    yield


@pytest.mark.spec("D-20")
def test_pieces_are_cut_alike_wherever_they_begin():
    assert pieces(0, 150, 64) == [range(64), range(64, 128), range(128, 150)]
    assert pieces(70, 150, 64) == [range(70, 128), range(128, 150)]
    assert pieces(64, 65, 64) == [range(64, 65)]


@pytest.mark.spec("D-20")
async def test_another_prompt_begins_a_new_turn_of_a_session(autojump_clock):
    drafter, limits = ScriptedDrafter(TABLE), DecodingLimits()
    place = Place("barn", "barn:1", "drafter", FIT)
    async with remote_session(
        place, drafter, session_id="s", dtype="float32", limits=limits
    ) as session:
        for prompt in ((3, 1, 4), (1, 5, 9, 2)):
            await session.restore(Turn(prompt, sink=0, window=len(prompt)))
            assert session.context_len == 0
            rows = np.repeat(np.array(prompt, np.float32)[:-1, None], 8, axis=1)
            await session.feed((rows,))
            drafted = await session.draft(prompt[-1], 3, None)
            assert list(drafted) == run_after(prompt, TABLE, 3)


@pytest.mark.spec("D-26")
async def test_restored_asks_for_banks_behind_the_whole_prompt(autojump_clock):
    drafter = ScriptedDrafter(TABLE)
    verifier = ToyVerifier(TABLE)
    plan = KvPlan("restored", 2, 4, 100, prompt_len=len(PROMPT))
    async with world(barn=drafter) as made:
        made.fit = replace(FIT, restores=True)
        for plain in (True, False):
            engine = engine_for(verifier)
            outcome = await run(
                engine, PROMPT, made.peers, max_tokens=50, plan=plan, plain=plain, draft_on="remote"
            )
            assert outcome.ids == run_after(PROMPT, TABLE, 50)
        await trio.sleep(1)
    assert [len(banks) for banks in verifier.restored] == [1, 1]
    assert verifier.restored[0][0].k.shape == (4, 1, 8)
    asked = [(each.sink, each.window) for each in drafter.restores]
    assert asked == [(0, 10), (2, 4)] * 2
    assert drafter.sessions == {}


@pytest.mark.spec("D-26")
async def test_restored_without_banks_is_refused(autojump_clock):
    plan = KvPlan("restored", 2, 4, 100, prompt_len=len(PROMPT))
    async with world(barn=ScriptedDrafter(TABLE)) as made:
        with pytest.raises(Refused, match="no drafter with an f_θ") as caught:
            await drafted_run(made, max_tokens=50, plan=plan)
    assert caught.value.status == "UNAVAILABLE"


@pytest.mark.spec("D-26")
async def test_where_nothing_is_evicted_no_banks_are_asked_for(autojump_clock):
    plan = KvPlan("restored", 2, 40, 100, prompt_len=len(PROMPT))
    outcome = await run(engine_for(ToyVerifier(TABLE)), PROMPT, None, max_tokens=50, plan=plan)
    assert outcome.ids == run_after(PROMPT, TABLE, 50)
