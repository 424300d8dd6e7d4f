"""What one text's prompt leaves for the next: time, never other ids."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import aclosing

import numpy as np
import pytest
import trio

from kakeya.decoding import decode
from kakeya.decoding.aux_log import AuxLog
from kakeya.decoding.kept_prefixes import KeptPrefix
from kakeya.decoding.loop import Engine
from kakeya.errors import Refused
from kakeya.verifying.verifier import KvPlan
from tests.decoding.scripted import ScriptedDrafter
from tests.decoding.test_sessions import drafted_blocks, world
from tests.decoding.toy import Outcome, ToyVerifier, engine_for, rough_table, run, run_after

TABLE = rough_table(7)
CHUNK_LEN = 4


def some_ids(count: int, seed: int = 0) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 24, count)]


def engine_keeping(kept_prefixes: int = 4, **options: int) -> Engine:
    return engine_for(ToyVerifier(TABLE, **options), kept_prefixes=kept_prefixes)


def toy_of(engine: Engine) -> ToyVerifier:
    assert isinstance(engine.verifier, ToyVerifier)
    return engine.verifier


async def said(engine: Engine, prompt: Sequence[int], max_tokens: int = 9) -> Outcome:
    toy_of(engine).prefills.clear()
    outcome = await run(engine, prompt, max_tokens=max_tokens, plain=True)
    assert outcome.ids == run_after(prompt, TABLE, max_tokens)
    assert sum(toy_of(engine).prefills) == len(prompt) - 1 - outcome.tally.cached_len
    return outcome


@pytest.mark.spec("D-36")
@pytest.mark.parametrize(
    ("first_len", "same_len", "next_len", "cached_len"),
    [
        (21, 21, 40, 20),  # all five chunks of the first prompt
        (20, 20, 40, 16),  # its last id was fed by a step, so its last chunk was not whole
        (24, 24, 40, 20),  # the same for 23 of them
        (21, 14, 40, 12),  # whole chunks of what is alike
        (21, 3, 40, 0),
        (40, 40, 21, 20),  # a prompt that is the start of an earlier one
        (40, 40, 20, 16),  # its last id is fed
        (40, 40, 40, 36),  # the very same again
        (4, 4, 40, 0),
    ],
)
async def test_the_next_prompt_reads_what_is_new(
    first_len, same_len, next_len, cached_len, autojump_clock
):
    engine, first = engine_keeping(), some_ids(first_len)
    assert (await said(engine, first)).tally.cached_len == 0
    behind = [23 - each for each in some_ids(max(first_len, next_len))][same_len:]
    second = [*first[:same_len], *behind][:next_len]
    assert (await said(engine, second)).tally.cached_len == cached_len


@pytest.mark.spec("D-36")
async def test_a_chat_reads_no_prompt_twice(autojump_clock):
    engine, text, last_len = engine_keeping(), some_ids(30), 1
    for turn in range(4):
        outcome = await said(engine, text)
        assert outcome.tally.cached_len == (last_len - 1) // CHUNK_LEN * CHUNK_LEN
        last_len = len(text)
        text = [*text, *outcome.ids, *some_ids(11, seed=turn)]
    assert engine.prefixes.num_kept == 1, "the same chat, gone on"


@pytest.mark.spec("D-38")
async def test_nothing_is_kept_where_none_is_to_be(autojump_clock):
    engine = engine_keeping(0)
    for _ in range(2):
        assert (await said(engine, some_ids(30))).tally.cached_len == 0
    assert not toy_of(engine).alive


@pytest.mark.spec("D-37")
async def test_a_text_that_begins_alike_leaves_the_other_in_its_place(autojump_clock):
    engine, shared = engine_keeping(), some_ids(16)
    ours, others = [*shared, *some_ids(30, seed=1)], [*shared, *some_ids(20, seed=2)]
    await said(engine, ours)
    assert (await said(engine, others)).tally.cached_len == 16
    assert toy_of(engine).rewinds == [(16, True)]
    assert (await said(engine, ours)).tally.cached_len == 44
    assert (await said(engine, others)).tally.cached_len == 32
    assert engine.prefixes.num_kept == 2


@pytest.mark.spec("D-38")
async def test_the_least_recently_used_goes_first(autojump_clock):
    engine = engine_keeping(2)
    a, b, c = (some_ids(21, seed) for seed in (1, 2, 3))
    await said(engine, a)
    await said(engine, b)
    assert (await said(engine, a)).tally.cached_len == 20
    await said(engine, c)
    assert engine.prefixes.num_kept == len(toy_of(engine).alive) == 2
    assert (await said(engine, a)).tally.cached_len == 20
    assert (await said(engine, b)).tally.cached_len == 0


@pytest.mark.spec("D-38")
async def test_kept_prefixes_make_room_before_a_generation_is_refused(autojump_clock):
    """Each text takes 8 bytes for each of its 30 positions."""
    engine = engine_keeping(4, max_kv_bytes=3 * 240)
    texts = [some_ids(21, seed) for seed in range(5)]
    for text in texts:
        await said(engine, text)
        assert sum(kv.resident_bytes for kv in toy_of(engine).alive) <= 3 * 240
    assert engine.prefixes.num_bytes == 3 * 240
    assert [(await said(engine, text)).tally.cached_len for text in reversed(texts)] == [
        20, 20, 20, 0, 0,
    ]  # fmt: skip
    whole = await said(engine, some_ids(21, seed=9), max_tokens=69)
    assert whole.tally.cached_len == 0
    with pytest.raises(Refused, match="the limit is 720"):
        await said(engine, some_ids(21, seed=9), max_tokens=70)
    assert engine.prefixes.num_kept == 0


@pytest.mark.spec("D-37", "D-38")
async def test_without_room_for_a_copy_the_prefix_is_taken(autojump_clock):
    engine, shared = engine_keeping(4, max_kv_bytes=500), some_ids(16)
    await said(engine, [*shared, *some_ids(14, seed=1)])
    assert (await said(engine, [*shared, *some_ids(14, seed=2)])).tally.cached_len == 16
    assert toy_of(engine).rewinds == [(16, False)]
    assert engine.prefixes.num_kept == 1
    # Another text, as long as the room: what is kept goes, and it is read from the start.
    assert (await said(engine, some_ids(30, seed=3), max_tokens=32)).tally.cached_len == 0


@pytest.mark.spec("D-37")
@pytest.mark.parametrize("num_jobs", range(1, 9))
async def test_a_text_given_up_leaves_what_it_had_read(num_jobs, autojump_clock):
    """While a job runs, between jobs, in the first one and in a step."""
    engine, text = engine_keeping(), some_ids(22)
    await said(engine, text[:9])
    engine.device.job_s = 1.0  # type: ignore[attr-defined]
    with trio.move_on_after(num_jobs - 0.5):
        await run(engine, text, max_tokens=9, plain=True)
    engine.device.job_s = 0.0  # type: ignore[attr-defined]
    wanted = min(8 + 4 * max(0, num_jobs - 2), 20)
    assert (await said(engine, text)).tally.cached_len in (wanted, min(wanted + 4, 20))
    assert engine.prefixes.num_kept == len(toy_of(engine).alive) == 1


@pytest.mark.spec("D-37")
async def test_a_caller_that_leaves_leaves_the_prefix(autojump_clock):
    engine, text = engine_keeping(), some_ids(22)
    async with aclosing(decode(engine, text, max_tokens=9)) as blocks:
        await anext(blocks)
    assert (await said(engine, text)).tally.cached_len == 20


@pytest.mark.spec("D-37")
async def test_a_text_cancelled_while_it_waits_gives_the_prefix_back(autojump_clock):
    engine, text = engine_keeping(), some_ids(22)
    await said(engine, text)
    engine.device.job_s = 1.0  # type: ignore[attr-defined]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.device.run, list)
        await trio.sleep(0.1)
        with trio.move_on_after(0.1):
            await run(engine, text, max_tokens=9)
    assert (await said(engine, text)).tally.cached_len == 20


@pytest.mark.spec("D-37")
async def test_a_text_that_failed_leaves_nothing(autojump_clock):
    engine, text = engine_keeping(), some_ids(22)
    toy_of(engine).nan_rows = lambda position, num_rows: True
    with pytest.raises(Refused, match="not finite"):
        await said(engine, text)
    assert engine.prefixes.num_kept == len(toy_of(engine).alive) == 0


@pytest.mark.spec("D-37")
async def test_plans_that_read_otherwise_share_nothing(autojump_clock):
    engine, text = engine_keeping(), some_ids(22)
    plans = [
        KvPlan("full", 0, 0, 40),
        KvPlan("window", 2, 9, 40),
        KvPlan("window", 3, 9, 40),
        KvPlan("restored", 2, 30, 40, prompt_len=22),  # evicts nothing: read as in full
    ]
    cached = []
    for plan in plans * 2:
        outcome = await run(engine, text, max_tokens=9, plan=plan)
        cached.append(outcome.tally.cached_len)
    assert cached == [0, 0, 0, 20, 20, 20, 20, 20]
    banks = KvPlan("restored", 2, 9, 40, prompt_len=22)
    assert engine.prefixes._find(array("I", text), banks, CHUNK_LEN, takes=False) is None


@pytest.mark.spec("D-37")
async def test_texts_side_by_side_share_no_k_v(autojump_clock):
    engine, text = engine_keeping(), some_ids(22)
    await said(engine, text)
    outcomes: list[Outcome] = []

    async def one(max_tokens: int) -> None:
        outcomes.append(await run(engine, text, max_tokens=max_tokens, plain=True))

    async with trio.open_nursery() as nursery:
        for max_tokens in (5, 7, 9):
            nursery.start_soon(one, max_tokens)
    assert all(o.ids == run_after(text, TABLE, len(o.ids)) for o in outcomes)
    assert sorted(o.tally.cached_len for o in outcomes) == [0, 0, 20]
    assert engine.prefixes.num_kept == 1, "what they left is alike"


@pytest.mark.spec("D-39")
@pytest.mark.parametrize("keeps_aux", [True, False])
async def test_sessions_of_the_next_text_are_seeded_whole(keeps_aux, autojump_clock):
    """From the rows that were kept, or from reading again."""
    engine, text = engine_keeping(), some_ids(22)
    drafter = ScriptedDrafter(TABLE)
    async with world(barn=drafter) as made:
        first = await run(engine, text, made.peers, max_tokens=60, draft_on="remote")
        if not keeps_aux:
            (kept,) = engine.prefixes._kept
            engine.prefixes._kept = [KeptPrefix(kept.ids, kept.kv, None)]
        toy_of(engine).prefills.clear()
        second = [*text, *first.ids]
        outcome = await run(engine, second, made.peers, max_tokens=300, draft_on="remote")
    assert outcome.ids == run_after(second, TABLE, 300)
    assert outcome.tally.cached_len == 20
    assert drafted_blocks(outcome) > 5
    drafted = [block for block in outcome.blocks[:-1] if block.proposer == "drafter"]
    assert all(b.num_accepted == b.num_drafts for b in drafted), "it has every position's row"
    num_read = len(second) - 1 - 20
    assert sum(toy_of(engine).prefills) == num_read + (0 if keeps_aux else 20)


def test_the_head_of_a_log_is_its_first_rows():
    log = AuxLog(max_bytes=1000)
    assert log.head(4) is None
    log.tap((2, 5), 0)
    rows = np.arange(20, dtype=np.float32)[:, None]
    for at in (0, 6, 12):
        log.add((rows[at : at + 6], -rows[at : at + 6]))
    head = log.head(8)
    assert head is not None
    assert (head.layers, head.first, head.end) == ((2, 5), 0, 8)
    assert head.rows(0, 8, (5,))[0].tolist() == (-rows[:8]).tolist()
    assert log.head(19) is None
    for _ in range(30):
        log.add((rows[:6], rows[:6]))
    assert log.head(8) is None, "the first rows are gone"
