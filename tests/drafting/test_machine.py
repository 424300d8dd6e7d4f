"""The session machine against its written spec, without a task or a thread."""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing

import numpy as np
import pytest

from kakeya.config.sessions import SessionLimits
from kakeya.config.settings import keys
from kakeya.drafting import machine
from kakeya.drafting import session_states as s
from kakeya.drafting.proposer import Draft
from kakeya.errors import Refused
from tests.drafting.numpy_drafter import NumpyDrafter, mixed
from tests.drafting.session_requests import (
    ONE_OF_EACH,
    PATHS,
    PROMPT,
    aux,
    draft,
    extend,
    restore,
    seed,
)
from tests.spec_tables import table

ROWS = table("session.md", "state", "request", "next", "guard", "refused with")
NEXT = {(state, request): set(following.split()) for state, request, following, *_ in ROWS}
LIMITS = SessionLimits()


def names(pair) -> tuple[str, str]:
    return pair[0].__name__, pair[1].__name__


class Bench:
    """A drafter, and the tools around it, for transitions applied by hand."""

    def __init__(self, drafter: NumpyDrafter | None = None, limits: SessionLimits = LIMITS) -> None:
        self.drafter = drafter or NumpyDrafter()
        self.held: list[int] = []
        self.tools = s.Tools(self.drafter, limits, self._work, self._draft, self.held.append)

    async def _work(self, fn, *args):
        return fn(*args)

    async def _draft(self, ask):
        return self.drafter.draft(ask.context, ask.context_len, ask.bonus_id, ask.num_drafts)

    async def apply(self, state, request):
        return await machine.TABLE[type(state), type(request)](state, request, self.tools)

    async def walk(self, *requests):
        """The state behind `requests`, from a fresh session."""
        state = s.Opened()
        for request in requests:
            state, _ = await self.apply(state, request)
        return state

    async def refuses(self, state, request) -> tuple[str, str]:
        with pytest.raises(Refused) as caught:
            await self.apply(state, request)
        return caught.value.status, caught.value.why


async def at(state: type, bench: Bench | None = None):
    return await (bench or Bench()).walk(*(ONE_OF_EACH[request] for request in PATHS[state]))


# ---- the table is the spec


@pytest.mark.spec("S-01")
def test_the_rows_are_those_of_the_spec():
    assert [names(pair) for pair in machine.TABLE] == [row[:2] for row in ROWS]


@pytest.mark.spec("S-01")
def test_the_states_and_what_they_hold_are_those_of_the_spec():
    rows = table("session.md", "state", "holds", "means")
    spec = {state: set(filter(None, holds.split(", "))) for state, holds, _ in rows}
    coded = {
        kind.__name__: {each.name for each in dataclasses.fields(kind)}
        for kind in typing.get_args(s.State)
    }
    assert spec == coded


@pytest.mark.spec("S-11")
def test_the_waits_of_the_states_are_those_of_the_spec():
    rows = table("session.md", "state", "limit", "default")
    coded = {kind.__name__: f"sessions.{name}" for kind, name in machine.WAITS.items()}
    assert {state: limit for state, limit, _ in rows} == coded
    assert {limit: default for _, limit, default in rows} == {
        limit: str(keys()[limit][1]) for limit in coded.values()
    }


@pytest.mark.spec("S-12")
def test_the_limits_are_those_of_the_spec():
    coded = {k: str(v) for k, (_, v) in keys().items() if k.startswith("sessions.")}
    assert dict(table("session.md", "key", "default")) == coded


@pytest.mark.spec("S-01")
@pytest.mark.parametrize("pair", machine.TABLE, ids=names)
def test_annotations_cover_the_row(pair):
    hints = typing.get_type_hints(machine.TABLE[pair])
    takes = hints["state"]
    kinds = getattr(takes, "__constraints__", ()) or typing.get_args(takes) or (takes,)
    assert pair[0] in kinds
    assert pair[1] is hints["request"]
    assert set(machine.next_states(*pair)) == NEXT[names(pair)]


@pytest.mark.spec("S-01")
@pytest.mark.parametrize("pair", machine.TABLE, ids=names)
async def test_each_row_arrives_where_the_spec_says(pair):
    bench = Bench()
    state = await at(pair[0], bench)
    arrived, _ = await bench.apply(state, ONE_OF_EACH[pair[1]])
    assert type(arrived).__name__ in NEXT[names(pair)]


def test_every_state_waits_and_every_request_has_a_place():
    assert set(machine.WAITS) == set(PATHS) == {state for state, _ in machine.TABLE}
    assert {request for _, request in machine.TABLE} == set(typing.get_args(s.Request))


# ---- Restore


@pytest.mark.spec("S-03")
@pytest.mark.parametrize(
    ("bad", "status", "words"),
    [
        (
            restore(()),
            "INVALID_ARGUMENT",
            "length of prompt_ids is 0, .* at least 1 and at most 400",
        ),
        (restore([1] * 401), "INVALID_ARGUMENT", "length of prompt_ids is 401"),
        (restore([1, 251]), "INVALID_ARGUMENT", "an id of prompt_ids is 251, it must be below 251"),
        (restore([2**32 - 1]), "INVALID_ARGUMENT", "is 4294967295"),
        (restore(window=0), "INVALID_ARGUMENT", "window is 0, it must be at least 1"),
        (restore(window=2**31), "INVALID_ARGUMENT", "window is 2147483648, .* at most 2147483647"),
        (restore(sink=2**31), "INVALID_ARGUMENT", "sink is 2147483648"),
        (restore(model_id="other"), "FAILED_PRECONDITION", "of model 'numpy', .* names 'other'"),
    ],
)
@pytest.mark.parametrize("state", PATHS)
async def test_a_restore_out_of_bounds_is_refused_before_any_work(state, bad, status, words):
    bench = Bench()
    before = await at(state, bench)
    bench.drafter.jobs.clear()
    bench.held.clear()
    told, why = await bench.refuses(before, bad)
    assert told == status
    assert re.search(words, why)
    assert bench.drafter.jobs == bench.held == []


@pytest.mark.spec("S-03")
@pytest.mark.parametrize(
    ("length", "sink", "window", "evicted"),
    [
        (10, 2, 3, [2, 3, 4, 5, 6]),
        (10, 0, 1, list(range(9))),
        (10, 4, 6, []),
        (10, 4, 7, []),
        (10, 20, 2, []),
        (1, 0, 1, []),
        (10, 9, 1, []),
        (10, 2**31 - 1, 2**31 - 1, []),
    ],
)
async def test_what_neither_sink_nor_window_keeps_is_evicted(length, sink, window, evicted):
    bench = Bench()
    request = restore(range(length), sink=sink, window=window)
    _, banks = await bench.apply(s.Opened(), request)
    assert list(banks.evicted) == evicted
    assert banks.prompt_len == length
    assert [bank.layer for bank in banks.layers] == ([0, 1] if evicted else [])
    for bank in banks.layers:
        assert bank.k.bits.shape == bank.v.bits.shape == (1, len(evicted), 2, 4)


@pytest.mark.spec("S-03")
async def test_full_layers_are_left_out_on_request_and_banks_have_a_limit():
    bench = Bench()
    _, banks = await bench.apply(s.Opened(), restore(omits=True))
    assert [bank.layer for bank in banks.layers] == [0]
    num_bytes = 2 * banks.layers[0].k.bits.nbytes
    small = Bench(limits=SessionLimits(max_restore_bytes=num_bytes))
    await small.apply(s.Opened(), restore(omits=True))
    status, why = await small.refuses(s.Opened(), restore())
    assert status == "RESOURCE_EXHAUSTED"
    assert why == f"the banks take {2 * num_bytes} bytes or more, the limit is {num_bytes}"


@pytest.mark.spec("S-07")
async def test_an_equal_prompt_is_answered_again_and_from_the_context_once_there_is_one():
    bench = Bench()
    restored, first = await bench.apply(s.Opened(), restore())
    again, second = await bench.apply(restored, restore())
    seeded, _ = await bench.apply(again, seed())
    same, third = await bench.apply(seeded, restore(sink=0))
    assert restored == again
    assert same is seeded
    assert (first.layers[0].k.bits == second.layers[0].k.bits).all()
    assert list(third.evicted) == [0, 1, 2, 3]
    assert not np.array_equal(third.layers[0].k.bits[0, 1:], first.layers[0].k.bits[0])
    assert (await bench.apply(same, draft()))[1] == (await bench.apply(seeded, draft()))[1]


@pytest.mark.spec("S-04")
@pytest.mark.parametrize("state", [s.Restored, s.Seeded])
async def test_another_prompt_is_a_new_turn(state):
    bench = Bench()
    before = await at(state, bench)
    after, _ = await bench.apply(before, restore(PROMPT[:-1]))
    assert after == s.Restored(machine.prompt_of(restore(PROMPT[:-1]).plan))
    assert after != await at(s.Restored)


@pytest.mark.spec("S-04")
async def test_once_drafted_even_an_equal_prompt_is_a_new_turn():
    bench = Bench()
    after, _ = await bench.apply(await at(s.Drafting, bench), restore())
    assert after == await at(s.Restored)


# ---- SeedContext and ExtendContext


@pytest.mark.spec("S-05", "S-06")
@pytest.mark.parametrize(
    ("num_rows", "first", "end", "words"),
    [
        (7, 0, 7, "7 positions, they must be at least 1 and at most the prompt's 6"),
        (0, 0, 0, "0 positions"),
        (2, 1, 3, "positions are 1 … 2, they must be 0 … 1 without a gap"),
        (2, 0, 3, "positions are 0 … 2, they must be 0 … 1 without a gap"),
    ],
)
async def test_seeding_starts_at_0_without_a_gap_and_ends_within_the_prompt(
    num_rows, first, end, words
):
    bench = Bench()
    request = s.SeedContext(aux(num_rows), first, end)
    status, why = await bench.refuses(await at(s.Restored, bench), request)
    assert (status, words in why) == ("INVALID_ARGUMENT", True), why
    assert "extend" not in bench.drafter.jobs


@pytest.mark.spec("S-05")
@pytest.mark.parametrize("cuts", [(6,), (1, 5), (2, 2, 2), (1, 1, 1, 1, 1, 1)])
async def test_a_prompt_seeded_in_pieces_drafts_as_one_seeded_at_once(cuts):
    bench = Bench()
    ends = list(itertools.accumulate(cuts))
    pieces = [extend(end - cut, cut) for end, cut in zip(ends[1:], cuts[1:], strict=True)]
    state = await bench.walk(restore(), seed(cuts[0]), *pieces)
    assert (type(state), state.context_len) == (s.Seeded, 6)
    whole = await at(s.Seeded, bench)
    assert (await bench.apply(state, draft()))[1] == (await bench.apply(whole, draft()))[1]


@pytest.mark.spec("S-05")
async def test_long_aux_is_checked_whole_and_then_written_in_short_jobs():
    bench = Bench()
    jobs = []

    async def work(fn, *args):
        jobs.append((fn.__name__, args[-2:]))
        return fn(*args)

    tools = dataclasses.replace(bench.tools, work=work)
    state, _ = await machine.restore(s.Opened(), restore([1] * 40, window=40), tools)
    jobs.clear()
    seeded, reply = await machine.seed(state, seed(40), tools)
    checks, writes = jobs[:3], jobs[3:]
    assert [name for name, _ in checks] == ["check"] * 3
    assert [rows for _, rows in writes] == [(0, 16), (16, 32), (32, 40)]
    assert reply == seeded.context_len == 40
    arrays = aux(40).rows(0, 40)
    assert np.array_equal(seeded.context.rows[:40], mixed(arrays, 0))


@pytest.mark.spec("S-06")
@pytest.mark.parametrize("row", [0, 39])
async def test_one_bad_value_in_long_aux_is_found_before_the_first_row_is_written(row):
    bench = Bench()
    state = await bench.walk(restore([1] * 40, window=40))
    request = seed(40)
    spoilt = np.frombuffer(request.aux._tensors[2].data, np.float32).reshape(1, 40, 8).copy()
    spoilt[0, row, 3] = np.nan
    request.aux._tensors[2].data = spoilt.tobytes()
    status, why = await bench.refuses(state, request)
    assert (status, why) == ("INVALID_ARGUMENT", "aux[2]: 1 of 320 values are not finite")
    assert "extend" not in bench.drafter.jobs


@pytest.mark.spec("S-01", "S-07")
@pytest.mark.parametrize("state", [s.Seeded, s.Drafting])
async def test_rows_go_behind_the_context_and_older_ones_change_nothing(state):
    bench = Bench()
    before = await at(state, bench)
    after, reply = await bench.apply(before, extend(6, 2))
    assert (type(after), after.context_len, reply) == (state, 8, 8)
    for retry in (extend(6, 2), extend(5, 1), extend(0, 8)):
        assert await bench.apply(after, retry) == (after, 8)
    for first, num_rows, words in ((7, 2, "positions start at 7"), (9, 1, "start at 9")):
        status, why = await bench.refuses(after, extend(first, num_rows))
        assert (status, words in why, "context_len is 8" in why) == (
            "FAILED_PRECONDITION",
            True,
            True,
        )
    gap = s.ExtendContext(aux(2), 8, 11)
    assert await bench.refuses(after, gap) == (
        "FAILED_PRECONDITION",
        "2 positions from 8 to 10 have a gap",
    )


@pytest.mark.spec("S-05")
async def test_neither_context_nor_block_reaches_past_the_drafters_room():
    bench = Bench()
    state = await bench.walk(restore([1] * 400, window=400), seed(395))
    status, why = await bench.refuses(state, extend(395, 6))
    assert (status, why) == (
        "INVALID_ARGUMENT",
        "positions would reach to 400, the drafter has room for 400",
    )
    assert len((await bench.apply(state, draft(395, num_drafts=4)))[1].ids) == 4
    assert (await bench.refuses(state, draft(395, num_drafts=5)))[0] == "INVALID_ARGUMENT"


# ---- DraftBlock


@pytest.mark.spec("S-06")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (draft(num_drafts=0), "block_size is 0, it must be at least 1 and at most 16"),
        (draft(num_drafts=17), "block_size is 17"),
        (draft(num_drafts=10**9), "block_size is 1000000000"),
        (draft(bonus_id=251), "bonus_token_id is 251, it must be below 251"),
        (draft(bonus_id=2**32 - 1), "bonus_token_id is 4294967295"),
    ],
)
@pytest.mark.parametrize("state", [s.Seeded, s.Drafting])
async def test_a_block_out_of_bounds_is_refused_before_any_work(state, bad, words):
    bench = Bench()
    before = await at(state, bench)
    bench.drafter.jobs.clear()
    status, why = await bench.refuses(before, bad)
    assert (status, words in why) == ("INVALID_ARGUMENT", True)
    assert bench.drafter.jobs == []


@pytest.mark.spec("S-08")
@pytest.mark.parametrize("context_len", [0, 5, 7, 2**32 - 1])
async def test_another_context_len_is_refused_naming_both(context_len):
    bench = Bench()
    told = await bench.refuses(await at(s.Seeded, bench), draft(context_len))
    assert told == (
        "FAILED_PRECONDITION",
        f"context_len is 6, the request says {context_len}",
    )


@pytest.mark.spec("S-07")
async def test_an_equal_block_is_not_drafted_twice_and_another_is():
    bench = Bench()
    state, first = await bench.apply(await at(s.Seeded, bench), draft())
    bench.drafter.jobs.clear()
    same, again = await bench.apply(state, draft())
    assert (same, again, bench.drafter.jobs) == (state, first, [])
    _, other = await bench.apply(state, draft(bonus_id=8))
    assert other != first
    assert bench.drafter.jobs == ["draft"]


@pytest.mark.spec("S-15")
@pytest.mark.parametrize("ids", [(), (1, 2), (1, 2, 3, 4), (1, -1, 2), (1, 2, 251)])
async def test_a_drafter_that_breaks_its_word_is_an_internal_error(ids):
    class Liar(NumpyDrafter):
        def draft(self, *args):
            return Draft(ids)

    bench = Bench(Liar())
    assert (await bench.refuses(await at(s.Seeded, bench), draft()))[0] == "INTERNAL"


# ---- what the owner asks


@pytest.mark.spec("S-08")
@pytest.mark.parametrize("state", PATHS)
async def test_only_what_lies_ahead_of_a_context_is_early(state):
    has_context = state in (s.Seeded, s.Drafting)
    there = await at(state)
    assert machine.is_early(there, draft(7)) is has_context
    assert machine.is_early(there, extend(7)) is has_context
    for request in (draft(6), draft(5), extend(6), extend(2), restore(), seed(), s.CloseSession()):
        assert not machine.is_early(there, request)


@pytest.mark.spec("S-12")
async def test_bytes_are_reserved_before_a_context_and_follow_its_length():
    bench = Bench()
    state = await bench.walk(restore())
    step = bench.drafter.context_bytes(1)
    assert bench.held == [step]
    assert machine.held_bytes(s.Opened(), bench.drafter) == 0
    assert machine.held_bytes(state, bench.drafter) == step
    state = await bench.walk(restore(), seed(), extend(6, 80))
    assert bench.held[-1] == machine.held_bytes(state, bench.drafter) == 2 * step


@pytest.mark.spec("S-12")
@pytest.mark.parametrize("request_", [restore(), restore([1] * 9), extend(6, 80)])
async def test_without_room_nothing_is_allocated(request_):
    bench = Bench()
    state = await at(s.Drafting, bench)
    bench.drafter.jobs.clear()

    def no_room(num_bytes):
        raise Refused("RESOURCE_EXHAUSTED", f"no room for {num_bytes}")

    tools = dataclasses.replace(bench.tools, hold=no_room)
    with pytest.raises(Refused, match="no room"):
        await machine.TABLE[s.Drafting, type(request_)](state, request_, tools)
    assert bench.drafter.jobs == []
