"""Penalties, biases and scores: by their definitions, and the same with drafts as without."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kakeya.decoding import Reshaping, Sampling
from kakeya.decoding.penalties import History, reshaped
from kakeya.decoding.source import Place
from kakeya.errors import Refused
from tests.decoding.toy import (
    VOCAB_SIZE,
    FakeSource,
    ToyVerifier,
    engine_for,
    peers_of,
    plain_run,
    rough_table,
    run,
    tied_table,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
RESHAPINGS = [
    Reshaping(repetition=1.3),
    Reshaping(repetition=0.8),
    Reshaping(frequency=0.4),
    Reshaping(presence=1.5),
    Reshaping(biases=((4, 3.0), (9, -50.0))),
    Reshaping(repetition=1.2, frequency=0.3, presence=-0.7, biases=((7, 1.0),)),
]


def by_definition(logits, by, prompt_ids, text_ids):
    """One logit after the other, as the spec says it."""
    counts = Counter(text_ids)
    out = []
    for token_id, logit in enumerate(logits):
        if token_id in counts or token_id in prompt_ids:
            logit = logit / by.repetition if logit > 0 else logit * by.repetition
        logit -= by.frequency * counts[token_id] + by.presence * (token_id in counts)
        out.append(logit + dict(by.biases).get(token_id, 0.0))
    return out


def mixed_source(right: list[int], seed: int) -> FakeSource:
    """A peer that drafts what will come, but for about every third id."""
    rng = np.random.default_rng(seed)

    def answer(committed, num_drafts):
        there = [*right[len(committed) :], *([0] * num_drafts)][:num_drafts]
        return [int(rng.integers(VOCAB_SIZE)) if rng.random() < 0.3 else each for each in there]

    return FakeSource(Place("cellar", "there:1", "toy"), answer)


@pytest.mark.spec("D-30")
@pytest.mark.parametrize("by", RESHAPINGS, ids=str)
def test_logits_are_changed_as_the_spec_says(by):
    logits = np.random.default_rng(1).normal(size=VOCAB_SIZE)
    text = [4, 4, 9, 20, 4]
    history = History(PROMPT, VOCAB_SIZE)
    history.add(text[:2])
    given = logits.copy()
    assert reshaped(logits, by, history, text[2:]) == pytest.approx(
        by_definition(given, by, PROMPT, text)
    )
    assert np.array_equal(logits, given)


@pytest.mark.spec("D-30", "D-13")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("by", RESHAPINGS, ids=str)
async def test_ids_do_not_depend_on_who_drafts_and_how_many(by, temperature, autojump_clock):
    for seed in range(4):
        sys.stdout.write(f"seed {seed}\n")
        table = (rough_table if seed % 2 else tied_table)(seed)
        sampling = Sampling(temperature=temperature, top_p=0.95, seed=seed, reshaping=by)
        asked = {"max_tokens": 40, "sampling": sampling}
        want = await plain_run(table, PROMPT, **asked)
        for num_drafts in (1, 2, 5, 16):
            drifting = ToyVerifier(table, drift=0.004, margin_bound=0.01)
            engine = engine_for(drifting)
            peers = peers_of(engine, mixed_source([*PROMPT, *want.ids], seed))
            drafted = await run(engine, PROMPT, peers, num_drafts=num_drafts, **asked)
            assert drafted.ids == want.ids
            assert drafted.tally.num_drafts > 0


@pytest.mark.spec("D-30")
async def test_a_penalty_that_is_strong_enough_lets_no_id_come_twice(autojump_clock):
    by = Reshaping(presence=100.0)
    outcome = await plain_run(
        rough_table(5), PROMPT, max_tokens=VOCAB_SIZE, sampling=Sampling(reshaping=by)
    )
    assert sorted(outcome.ids) == list(range(VOCAB_SIZE))


async def test_a_banned_id_never_comes_and_a_forced_one_always(autojump_clock):
    banned = Sampling(temperature=1.0, seed=3, reshaping=Reshaping(biases=((4, -100.0),)))
    forced = replace(banned, reshaping=Reshaping(biases=((4, 100.0),)))
    table = tied_table(2)
    assert 4 not in (await plain_run(table, PROMPT, max_tokens=60, sampling=banned)).ids
    assert set((await plain_run(table, PROMPT, max_tokens=60, sampling=forced)).ids) == {4}


@pytest.mark.spec("D-31")
@pytest.mark.parametrize("exact", ["guarded", "strict"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_every_id_has_the_log_probability_of_the_models_own_logits(
    exact, temperature, autojump_clock
):
    table = tied_table(3)
    sampling = Sampling(temperature=temperature, seed=8, reshaping=Reshaping(presence=0.5))
    asked = {"max_tokens": 50, "sampling": sampling, "num_top": 3, "exact": exact}
    want = await plain_run(table, PROMPT, max_tokens=50, sampling=sampling)
    engine = engine_for(ToyVerifier(table, drift=1e-4, margin_bound=1e-3))
    peers = peers_of(engine, mixed_source([*PROMPT, *want.ids], 8))
    outcome = await run(engine, PROMPT, peers, num_drafts=4, **asked)
    assert outcome.ids == want.ids
    scores = [score for block in outcome.blocks for score in block.scores]
    assert [len(block.scores) for block in outcome.blocks] == [
        len(block.ids) for block in outcome.blocks
    ]
    seen = [*PROMPT, *outcome.ids]
    for i, (token_id, score) in enumerate(zip(outcome.ids, scores, strict=True)):
        logits = table[seen[len(PROMPT) + i - 2], seen[len(PROMPT) + i - 1]].astype(float)
        logprobs = logits - np.log(np.exp(logits).sum())
        assert score.logprob == pytest.approx(logprobs[token_id], abs=1e-3)
        assert len(score.top) == 3
        ranked = sorted(logprobs)[::-1][:3]
        assert [logprob for _, logprob in score.top] == pytest.approx(ranked, abs=1e-3)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (Reshaping(repetition=0.0), "repetition_penalty is 0.0"),
        (Reshaping(presence=float("nan")), "presence_penalty is nan"),
        (Reshaping(frequency=101.0), "frequency_penalty is 101.0"),
        (Reshaping(biases=((3, 1e9),)), "a bias is 1000000000.0"),
        (Reshaping(biases=((VOCAB_SIZE, 1.0),)), "names token 24, ids are below 24"),
        (Reshaping(biases=((3, 1.0),) * 1025), "logit_bias has 1025 ids, the limit is 1024"),
    ],
)
async def test_values_out_of_bounds_are_refused_by_name(by, words, autojump_clock):
    with pytest.raises(Refused, match=words):
        await plain_run(rough_table(1), PROMPT, max_tokens=3, sampling=Sampling(reshaping=by))
