"""Speculation is used where it pays, by measurement, and never to a loss."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

import pytest

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.policy import (
    ALONE,
    Acceptance,
    Choice,
    Ledger,
    Pace,
    best_choice,
    first_worthwhile,
)
from kakeya.decoding.source import Place
from tests.decoding.toy import (
    VOCAB_SIZE,
    FakeSource,
    ToyVerifier,
    cpu_step_s,
    engine_for,
    peers_of,
    plain_run,
    rough_table,
    run,
    run_after,
)

LIMITS = DecodingLimits()
ATTIC = Place("attic", "attic:1", "model")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)


def measured(step_s: Callable[[int], float], block_lens: Sequence[int] = (2, 4, 8, 16)) -> Pace:
    pace = Pace(LIMITS)
    for _ in range(9):
        pace.add(1, step_s(1))
        for block_len in block_lens:
            pace.add(block_len, step_s(block_len))
    pace.add(1, step_s(1))
    return pace


def accepting(rate: float, seed: int = 1) -> Acceptance:
    sys.stdout.write(f"seed {seed}" + "\n")
    rng = random.Random(seed)
    acceptance = Acceptance(0.4)
    for _ in range(200):
        held = 0
        while held < 15 and rng.random() < rate:
            held += 1
        acceptance.add(15, held)
    return acceptance


@pytest.mark.spec("D-09")
def test_the_block_length_follows_acceptance():
    pace = measured(cpu_step_s)
    chosen = [
        best_choice(pace, accepting(rate), draft_s=0, max_num_drafts=16).num_drafts
        for rate in (0.0, 0.5, 0.98)
    ]
    assert chosen[0] == 0
    assert chosen[1] in (1, 3)
    assert chosen[2] == 15


@pytest.mark.spec("D-09")
def test_nothing_is_drafted_while_nothing_is_measured():
    assert best_choice(Pace(LIMITS), accepting(1.0), draft_s=0, max_num_drafts=16) == ALONE


@pytest.mark.spec("D-09")
def test_a_round_trip_that_eats_the_gain_is_not_paid():
    pace = measured(cpu_step_s)
    acceptance = accepting(0.5)
    assert best_choice(pace, acceptance, draft_s=0.005, max_num_drafts=16).num_drafts > 0
    assert best_choice(pace, acceptance, draft_s=0.1, max_num_drafts=16) == ALONE


@pytest.mark.spec("D-09")
def test_costly_rows_are_not_paid():
    pace = measured(lambda block_len: 0.075 * block_len)
    assert best_choice(pace, accepting(0.6), draft_s=0, max_num_drafts=16) == ALONE


def test_the_prior_ratio_stands_until_something_is_measured():
    pace = Pace(LIMITS)
    assert pace.ratio(4) == pytest.approx(1.18)
    assert pace.one_s is None


def test_an_unmeasured_length_is_judged_by_the_nearest_measured_one():
    pace = measured(lambda block_len: 0.1 * (1 + 0.2 * (block_len - 1)), block_lens=(4,))
    assert pace.ratio(8) > 1.5 * 1.42 * 0.8


def test_one_interrupted_step_moves_nothing():
    pace = measured(cpu_step_s)
    before = pace.ratio(4), pace.one_s
    pace.add(4, 2.0)
    pace.add(1, 2.0)
    assert (pace.ratio(4), pace.one_s) == pytest.approx(before)


def test_acceptance_fades_so_that_what_failed_is_tried_again():
    acceptance = Acceptance(0.4)
    for _ in range(50):
        acceptance.add(3, 0)
    low = acceptance.expected_ids(3)
    assert low < 1.15
    for _ in range(200):
        acceptance.skip()
    assert acceptance.expected_ids(3) > 1.4


@pytest.mark.spec("D-09")
def test_an_earlier_source_is_kept_unless_it_is_clearly_worse():
    assert first_worthwhile([Choice(3, 1.5), Choice(3, 1.6)], LIMITS) == 0
    assert first_worthwhile([Choice(3, 1.1), Choice(7, 1.6)], LIMITS) == 1
    assert first_worthwhile([ALONE, Choice(3, 1.2)], LIMITS) == 1
    assert first_worthwhile([ALONE, ALONE], LIMITS) is None
    assert first_worthwhile([], LIMITS) is None


@pytest.mark.spec("D-19")
def test_speculation_that_loses_is_switched_off_and_tried_again_later():
    ledger, pace = Ledger(LIMITS), measured(cpu_step_s)
    gains = [ledger.add_drafted(1, 0.1, pace) for _ in range(LIMITS.window_blocks)]
    assert gains == [None] * LIMITS.window_blocks
    assert pace.wants_one  # perhaps it is the host that became slower
    assert ledger.add_drafted(1, 0.1, pace) == pytest.approx(0.75)
    assert not ledger.is_on
    for _ in range(LIMITS.off_blocks):
        ledger.add_alone()
    assert ledger.is_on
    for _ in range(LIMITS.window_blocks + 1):
        ledger.add_drafted(1, 0.1, pace)
    for _ in range(2 * LIMITS.off_blocks - 1):
        ledger.add_alone()
    assert not ledger.is_on  # twice as long
    ledger.add_alone()
    assert ledger.is_on


@pytest.mark.spec("D-19")
def test_speculation_that_pays_stays_on():
    ledger, pace = Ledger(LIMITS), measured(cpu_step_s)
    assert [ledger.add_drafted(3, 0.09, pace) for _ in range(200)] == [None] * 200


@pytest.mark.spec("D-19")
def test_a_host_that_became_slower_is_not_blamed_on_speculation():
    ledger, pace = Ledger(LIMITS), measured(cpu_step_s)
    for _ in range(LIMITS.window_blocks):
        ledger.add_drafted(2, 0.2, pace)
    while pace.wants_one:
        pace.add(1, 0.15)
    assert [ledger.add_drafted(2, 0.2, pace) for _ in range(50)] == [None] * 50
    assert ledger.is_on


def never_right(committed: Sequence[int], num_drafts: int) -> list[int]:
    right = run_after(committed, rough_table(1), num_drafts)
    return [(each + 1) % VOCAB_SIZE for each in right]


@pytest.mark.spec("D-19")
@pytest.mark.parametrize("rows_cost", [0.0, 0.06, 0.5, 1.0])
@pytest.mark.parametrize("trip_s", [0.002, 0.06])
async def test_a_useless_proposer_costs_little_whatever_rows_cost(
    rows_cost, trip_s, autojump_clock
):
    def step_s(block_len: int) -> float:
        return 0.075 * (1 + rows_cost * (block_len - 1))

    engine = engine_for(ToyVerifier(rough_table(1)), step_s)
    source = FakeSource(ATTIC, never_right, lambda: trip_s)
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=150, draft_on="remote")
    assert outcome.ids == run_after(PROMPT, rough_table(1), 150)
    assert outcome.elapsed_s <= 1.15 * 150 * 0.075


def noisy_step_s(seed: int) -> Callable[[int], float]:
    """Steps on a host whose other core is taken now and then: 1 to 1.8 times, now and then 5."""
    sys.stdout.write(f"seed {seed}" + "\n")
    rng = random.Random(seed)
    state = {"load": 1.0}

    def step_s(block_len: int) -> float:
        if rng.random() < 0.02:
            state["load"] = rng.choice([1.0, 1.8])
        spike = 5 if rng.random() < 0.01 else 1
        return cpu_step_s(block_len) * state["load"] * spike * rng.uniform(0.9, 1.2)

    return step_s


def sometimes_right(rate: float, seed: int) -> Callable[[Sequence[int], int], list[int]]:
    rng = random.Random(seed)

    def answer(committed: Sequence[int], num_drafts: int) -> list[int]:
        ids = run_after(committed, rough_table(1), num_drafts)
        return [each if rng.random() < rate else (each + 1) % VOCAB_SIZE for each in ids]

    return answer


@pytest.mark.spec("D-09")
@pytest.mark.parametrize(
    ("rate", "least"), [(0.0, 0.95), (0.1, 0.95), (0.2, 0.96), (0.6, 1.5), (0.85, 2.2)]
)
async def test_noisy_times_do_not_make_it_lose(rate, least, autojump_clock):
    """Mean of several seeds: the rate of ids against the same noise without drafts."""
    plain_s = speculative_s = 0.0
    for seed in range(6):
        for plain in (True, False):
            engine = engine_for(ToyVerifier(rough_table(1)), noisy_step_s(seed))
            source = FakeSource(ATTIC, sometimes_right(rate, seed), lambda: 0.003)
            outcome = await run(
                engine, PROMPT, peers_of(engine, source), max_tokens=200, plain=plain,
                draft_on="remote",
            )  # fmt: skip
            if plain:
                plain_s += outcome.elapsed_s
            else:
                speculative_s += outcome.elapsed_s
    sys.stdout.write(f"gain {plain_s / speculative_s:.3f}" + "\n")
    assert plain_s / speculative_s >= least


async def test_plain_asks_nobody(autojump_clock):
    engine = engine_for(ToyVerifier(rough_table(1)))
    source = FakeSource(ATTIC, never_right)
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=40, plain=True)
    assert not source.asked
    assert not outcome.tally.num_drafts
    reference = await plain_run(rough_table(1), PROMPT, max_tokens=40)
    assert outcome.ids == reference.ids
