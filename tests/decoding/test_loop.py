"""The loop commits what the verifier alone would, cut exactly where it ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
import trio

from kakeya.compute.device import InlineDevice, ThreadDevice
from kakeya.decoding import Sampling, decode, engine_of
from kakeya.decoding.source import Place
from kakeya.errors import Refused
from kakeya.verifying.verifier import KvPlan
from tests.decoding.toy import (
    VOCAB_SIZE,
    FakeSource,
    ToyVerifier,
    engine_for,
    failing,
    peers_of,
    plain_run,
    rough_table,
    run,
    run_after,
    tied_table,
)

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
ATTIC = Place("attic", "attic:1", "model")


def oracle(seed: int, wrong_every: int = 0):
    """A proposer that knows the verifier, and errs at every `wrong_every`-th position."""
    table = rough_table(seed)

    def answer(committed: Sequence[int], num_drafts: int) -> list[int]:
        ids = run_after(committed, table, num_drafts)
        for i in range(num_drafts):
            if wrong_every and (len(committed) + i) % wrong_every == 0:
                ids[i] = (ids[i] + 1) % VOCAB_SIZE
        return ids

    return answer


def off_by_one(committed: Sequence[int], num_drafts: int) -> list[int]:
    return [(each + 1) % VOCAB_SIZE for each in oracle(1)(committed, num_drafts)]


def random_ids(committed: Sequence[int], num_drafts: int) -> list[int]:
    rng = random.Random(len(committed))
    return [rng.randrange(VOCAB_SIZE) for _ in range(num_drafts)]


GARBAGE = {
    "too few": lambda committed, n: [1] * (n - 1),
    "too many": lambda committed, n: [1] * (n + 1),
    "none": lambda committed, n: [],
    "unknown ids": lambda committed, n: [VOCAB_SIZE] * n,
    "largest id": lambda committed, n: [(1 << 32) - 1] * n,
    "always wrong": off_by_one,
    "random": random_ids,
    "unavailable": failing("unavailable"),
    "refused": failing("not_found"),
}


@pytest.mark.spec("D-01")
@pytest.mark.parametrize("num_drafts", range(17))
async def test_ids_do_not_depend_on_the_number_of_drafts(num_drafts, autojump_clock):
    table = rough_table(1)
    engine = engine_for(ToyVerifier(table))
    source = FakeSource(ATTIC, oracle(1, wrong_every=5))
    speculative = await run(
        engine, PROMPT, peers_of(engine, source), max_tokens=80, num_drafts=num_drafts
    )
    assert speculative.ids == run_after(PROMPT, table, 80)
    if num_drafts:
        assert speculative.tally.num_accepted > 0
        assert "attic" in speculative.drafted_on()


@pytest.mark.spec("D-01", "D-03")
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("num_drafts", [None, 3])
async def test_garbage_from_a_proposer_changes_no_id(kind, num_drafts, autojump_clock):
    table = rough_table(1)
    engine = engine_for(ToyVerifier(table))
    peers = peers_of(engine, FakeSource(ATTIC, GARBAGE[kind]))
    outcome = await run(engine, PROMPT, peers, max_tokens=100, num_drafts=num_drafts)
    assert outcome.ids == run_after(PROMPT, table, 100)
    if num_drafts is None:
        assert outcome.elapsed_s <= 1.3 * 100 * 0.075


@pytest.mark.spec("D-03")
async def test_a_malformed_draft_is_counted_and_reaches_no_verifier(autojump_clock):
    # A proposer that is sound while probed and lies afterwards.
    def answer(committed: Sequence[int], num_drafts: int) -> list[int]:
        return oracle(1)(committed, num_drafts) if num_drafts == 1 else [VOCAB_SIZE] * num_drafts

    engine = engine_for(ToyVerifier(rough_table(1)))
    peers = peers_of(engine, FakeSource(ATTIC, answer))
    outcome = await run(engine, PROMPT, peers, max_tokens=40, num_drafts=3)
    assert outcome.ids == run_after(PROMPT, rough_table(1), 40)
    assert outcome.tally.fallbacks == {"malformed": outcome.tally.malformed_drafts}
    assert outcome.tally.malformed_drafts >= 1


@pytest.mark.spec("D-04")
@pytest.mark.parametrize("seed", range(4))
async def test_exact_and_near_ties_fall_alike_in_both_paths(seed, autojump_clock):
    table = tied_table(seed)
    reference = await plain_run(table, PROMPT, max_tokens=120)
    engine = engine_for(ToyVerifier(table))
    source = FakeSource(ATTIC, lambda ids, n: run_after(ids, table, n))
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=120, num_drafts=7)
    assert outcome.ids == reference.ids == run_after(PROMPT, table, 120)
    assert len({4, 13} & set(outcome.ids)) > 0


@pytest.mark.spec("D-05")
@pytest.mark.parametrize("seed", range(4))
async def test_drift_within_the_bound_is_decided_again_and_changes_no_id(seed, autojump_clock):
    table = tied_table(seed)
    engine = engine_for(ToyVerifier(table, drift=1e-3, margin_bound=2e-3))
    source = FakeSource(ATTIC, lambda ids, n: run_after(ids, table, n))
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=120, num_drafts=7)
    assert outcome.ids == run_after(PROMPT, table, 120)
    assert outcome.tally.margin_rechecks > 0


@pytest.mark.spec("D-05")
async def test_drift_beyond_the_bound_would_show(autojump_clock):
    """The tests above have teeth: without the guard the same drift changes ids."""
    differing = 0
    for seed in range(4):
        table = tied_table(seed)
        engine = engine_for(ToyVerifier(table, drift=1e-3, margin_bound=0.0))
        source = FakeSource(ATTIC, lambda ids, n, t=table: run_after(ids, t, n))
        outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=120, num_drafts=7)
        differing += outcome.ids != run_after(PROMPT, table, 120)
    assert differing > 0


@pytest.mark.spec("D-06")
async def test_strict_commits_by_one_token_passes_only(autojump_clock):
    verifier = ToyVerifier(tied_table(1), drift=1.0)
    engine = engine_for(verifier)
    source = FakeSource(ATTIC, lambda ids, n: run_after(ids, verifier.table, n))
    outcome = await run(
        engine, PROMPT, peers_of(engine, source), max_tokens=60, num_drafts=5, exact="strict"
    )
    assert outcome.ids == run_after(PROMPT, verifier.table, 60)
    assert set(verifier.forwards) == {1}
    assert outcome.tally.num_accepted > 0


@pytest.mark.spec("D-02")
async def test_every_block_commits_at_least_one_id(autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)))
    peers = peers_of(engine, FakeSource(ATTIC, off_by_one))
    outcome = await run(engine, PROMPT, peers, max_tokens=50, num_drafts=3)
    assert all(len(block.ids) >= 1 for block in outcome.blocks)
    drafted = [block for block in outcome.blocks if block.drafted_on == "attic"]
    assert drafted
    assert all(block.num_accepted == 0 for block in drafted)


@pytest.mark.spec("D-07")
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 15, 16, 17])
async def test_never_more_than_max_tokens(max_tokens, autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)))
    peers = peers_of(engine, FakeSource(ATTIC, oracle(1)))
    outcome = await run(engine, PROMPT, peers, max_tokens=max_tokens, num_drafts=3)
    assert outcome.ids == run_after(PROMPT, rough_table(1), max_tokens)
    assert outcome.finish_reason == "length"
    assert outcome.tally.num_ids == max_tokens


@pytest.mark.spec("D-07")
async def test_the_end_of_the_context_ends_the_text(autojump_clock):
    verifier = ToyVerifier(rough_table(1), max_context_len=20)
    engine = engine_for(verifier)
    peers = peers_of(engine, FakeSource(ATTIC, oracle(1)))
    outcome = await run(engine, PROMPT, peers, max_tokens=100, num_drafts=7)
    assert outcome.ids == run_after(PROMPT, rough_table(1), 10)
    assert outcome.finish_reason == "length"
    assert verifier.plans[0].max_len == 20


@pytest.mark.spec("D-08")
@pytest.mark.parametrize("place_in_block", range(1, 17))
async def test_a_stop_id_inside_a_block_is_the_last_id(place_in_block, autojump_clock):
    expected = run_after(PROMPT, rough_table(1), 60)
    engine = engine_for(ToyVerifier(rough_table(1)))
    peers = peers_of(engine, FakeSource(ATTIC, oracle(1)))
    stop = expected[place_in_block]
    outcome = await run(engine, PROMPT, peers, max_tokens=60, num_drafts=15, stop_ids={stop})
    end = expected.index(stop) + 1
    assert outcome.ids == expected[:end]
    assert outcome.finish_reason == "stop"
    assert outcome.tally.num_ids == end
    assert outcome.blocks[-1].num_accepted <= len(outcome.blocks[-1].ids)


class Letters:
    """A text stream in which every id is one letter, or a few."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self.words[each] for each in ids)

    def flush(self) -> str:
        return "."


WORDS = [chr(ord("a") + i) for i in range(VOCAB_SIZE)]


@pytest.mark.spec("D-08")
@pytest.mark.parametrize("start", range(1, 24))
@pytest.mark.parametrize("num_drafts", [0, 3, 15])
async def test_a_stop_string_is_cut_wherever_it_lies_in_the_blocks(
    start, num_drafts, autojump_clock
):
    expected = run_after(PROMPT, rough_table(3), 60)
    text = "".join(WORDS[each] for each in expected)
    stop = text[start : start + 4]
    engine = engine_for(ToyVerifier(rough_table(3)))
    peers = peers_of(engine, FakeSource(ATTIC, oracle(3)))
    outcome = await run(
        engine, PROMPT, peers, max_tokens=60, num_drafts=num_drafts, stops=(stop,),
        text=Letters(WORDS),
    )  # fmt: skip
    end = text.index(stop)
    assert outcome.text == text[:end]
    assert outcome.ids == expected[:end]
    assert outcome.tally.num_ids == end
    assert outcome.finish_reason == "stop"


@pytest.mark.spec("D-08")
async def test_held_text_comes_out_when_the_stop_string_does_not(autojump_clock):
    expected = run_after(PROMPT, rough_table(1), 30)
    text = "".join(WORDS[each] for each in expected)
    engine = engine_for(ToyVerifier(rough_table(1)))
    outcome = await run(
        engine, PROMPT, max_tokens=30, stops=(text[-3:] + "!",), text=Letters(WORDS)
    )
    assert outcome.text == text + "."
    assert outcome.ids == expected
    assert outcome.finish_reason == "length"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 5, "num_drafts": 17}, "num_drafts is 17, it must be at least 0"),
        ({"max_tokens": 5, "stops": ("",)}, "1 to 1024 characters"),
        ({"max_tokens": 5, "stops": ("x",)}, "need a text stream"),
        ({"max_tokens": 5, "exact": "roughly"}, "exact is 'roughly'"),
        ({"max_tokens": 5, "sampling": Sampling(temperature=-1)}, "temperature is -1"),
        ({"max_tokens": 5, "sampling": Sampling(top_p=float("nan"))}, "top_p is nan"),
    ],
)
@pytest.mark.spec("D-07")
async def test_a_request_out_of_bounds_is_refused_before_any_work(options, words):
    verifier = ToyVerifier(rough_table(1))
    with pytest.raises(Refused, match=words) as caught:
        await run(engine_for(verifier), PROMPT, **options)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert not verifier.plans


@pytest.mark.parametrize("prompt", [(), (VOCAB_SIZE,), (1,) * 4096])
async def test_a_prompt_out_of_bounds_is_refused_before_any_work(prompt):
    verifier = ToyVerifier(rough_table(1))
    with pytest.raises(Refused) as caught:
        await run(engine_for(verifier), prompt, max_tokens=5)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert not verifier.plans


@pytest.mark.spec("D-10")
async def test_logits_that_are_not_finite_end_the_request_alone(autojump_clock):
    verifier = ToyVerifier(rough_table(1), nan_rows=lambda position, num_rows: position == 15)
    engine = engine_for(verifier)
    with pytest.raises(Refused, match="behind position 15 are not finite") as caught:
        await run(engine, PROMPT, max_tokens=20, num_drafts=3)
    assert caught.value.status == "INTERNAL"
    verifier.nan_rows = lambda position, num_rows: False
    assert (await run(engine, PROMPT, max_tokens=20)).finish_reason == "length"


@pytest.mark.spec("D-10")
async def test_drafts_that_drive_the_logits_off_cost_a_step_and_no_more(autojump_clock):
    verifier = ToyVerifier(rough_table(1), nan_rows=lambda position, num_rows: num_rows > 1)
    engine = engine_for(verifier)
    peers = peers_of(engine, FakeSource(ATTIC, oracle(1)))
    outcome = await run(engine, PROMPT, peers, max_tokens=20, num_drafts=3)
    assert outcome.ids == run_after(PROMPT, rough_table(1), 20)
    assert outcome.tally.nan_rechecks > 0


@pytest.mark.spec("D-11")
async def test_ids_do_not_depend_on_other_generations(autojump_clock):
    table = rough_table(1)
    engine = engine_for(ToyVerifier(table, drift=1e-4, margin_bound=2e-4))
    prompts = [PROMPT, PROMPT[::-1], (7,), (2, 2, 2, 2)]
    outcomes = {}

    async def one(prompt: tuple[int, ...]) -> None:
        peers = peers_of(engine, FakeSource(ATTIC, oracle(1, wrong_every=3)))
        outcomes[prompt] = await run(engine, prompt, peers, max_tokens=60)

    async with trio.open_nursery() as nursery:
        for prompt in prompts:
            nursery.start_soon(one, prompt)
    for prompt in prompts:
        assert outcomes[prompt].ids == run_after(prompt, table, 60)


@pytest.mark.spec("D-11")
async def test_generations_take_turns_block_by_block(autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)))
    order: list[str] = []

    async def one(name: str) -> None:
        async for _ in decode(engine, PROMPT, max_tokens=10, plain=True):
            order.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "a")
        nursery.start_soon(one, "b")
    assert all(set(order[i : i + 2]) == {"a", "b"} for i in range(0, 20, 2))


@pytest.mark.spec("D-12")
async def test_the_prompt_goes_in_by_chunks_whoever_drafts(autojump_clock):
    prompt = tuple(i % VOCAB_SIZE for i in range(11))
    prefills = []
    for options in ({"plain": True}, {"num_drafts": 5}):
        verifier = ToyVerifier(rough_table(1))
        await run(engine_for(verifier), prompt, max_tokens=3, **options)
        prefills.append(verifier.prefills)
    assert prefills == [[4, 4, 2]] * 2


@pytest.mark.spec("D-12")
async def test_a_caller_that_leaves_in_the_prefill_stops_it_within_one_job(autojump_clock):
    verifier = ToyVerifier(rough_table(1))
    engine = engine_of(verifier, InlineDevice(job_s=1.0))
    with trio.move_on_after(3.5):
        await run(engine, (1,) * 1000, max_tokens=5)
    assert len(verifier.prefills) <= 4


async def test_a_caller_that_leaves_stops_the_work_within_one_block(autojump_clock):
    verifier = ToyVerifier(rough_table(1))
    engine = engine_of(verifier, InlineDevice(job_s=1.0))
    async with aclosing(decode(engine, PROMPT, max_tokens=1000)) as blocks:
        async for _ in blocks:
            if len(verifier.forwards) == 5:
                break
    await trio.sleep(100)
    assert len(verifier.forwards) == 5


async def test_it_runs_on_a_real_thread():
    table = rough_table(1)
    device = ThreadDevice(name="toy", max_waiting=8)
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        outcome = await run(engine_of(ToyVerifier(table), device), PROMPT, max_tokens=40)
        nursery.cancel_scope.cancel()
    assert outcome.ids == run_after(PROMPT, table, 40)


@pytest.mark.spec("D-13")
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
async def test_a_seeded_text_depends_neither_on_blocks_nor_on_who_drafts(
    temperature, autojump_clock
):
    table = rough_table(1) * 2
    sampling = Sampling(temperature=temperature, top_k=12, top_p=0.95, min_p=0.01, seed=77)
    reference = await plain_run(table, PROMPT, max_tokens=80, sampling=sampling)
    for num_drafts in (1, 2, 7, 16, None):
        verifier = ToyVerifier(table, drift=1e-3, margin_bound=2e-3)
        engine = engine_for(verifier)
        peers = peers_of(engine, FakeSource(ATTIC, random_ids))
        outcome = await run(
            engine, PROMPT, peers, max_tokens=80, num_drafts=num_drafts, sampling=sampling
        )
        assert outcome.ids == reference.ids
    other = await plain_run(table, PROMPT, max_tokens=80, sampling=replace(sampling, seed=78))
    assert other.ids != reference.ids


@pytest.mark.spec("D-14")
async def test_the_tally_adds_up(autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)))
    peers = peers_of(engine, FakeSource(ATTIC, oracle(1, wrong_every=4)))
    outcome = await run(engine, PROMPT, peers, max_tokens=60, num_drafts=3)
    tally = outcome.tally
    drafted = [block for block in outcome.blocks if block.num_drafts]
    assert tally.num_ids == len(outcome.ids) == 60
    assert tally.num_blocks == len(outcome.blocks)
    assert tally.num_drafted_blocks == len(drafted)
    assert tally.num_drafts == sum(block.num_drafts for block in drafted) == sum(tally.offered_at)
    assert tally.num_accepted == sum(b.num_accepted for b in drafted) == sum(tally.accepted_at)
    assert tally.mean_acceptance_length == 1 + tally.num_accepted / len(drafted)
    assert tally.decode_s == pytest.approx(tally.draft_s + tally.verify_s + tally.overhead_s)
    assert tally.prefill_s + tally.decode_s == pytest.approx(outcome.elapsed_s)


async def test_a_plan_bounds_the_positions(autojump_clock):
    verifier = ToyVerifier(rough_table(1))
    plan = KvPlan("window", 2, 8, 16)
    outcome = await run(engine_for(verifier), PROMPT, max_tokens=100, plan=plan)
    assert len(outcome.ids) == 6
    assert verifier.plans == [plan]
