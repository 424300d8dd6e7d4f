"""A model's own ids, with what it read kept between calls."""

from __future__ import annotations

import random

import pytest

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.autoregressive import AutoregressiveProposer
from kakeya.errors import Refused
from tests.drafting.toy_model import VOCAB_SIZE, ToyModel, finished, greedy, step

LIMITS = DraftingLimits(min_cache_len=64)


def some_text(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB_SIZE) for _ in range(length)]


def draft(proposer, ids, num_drafts=4):
    return finished(proposer.jobs(ids, num_drafts=num_drafts, num_steps=1))


@pytest.mark.spec("P-09", "P-12")
@pytest.mark.parametrize("length", [1, 2, 64, 65, 130])
def test_the_drafts_are_the_models_own_ids(length):
    model, text = ToyModel(), some_text(length)
    found = draft(AutoregressiveProposer(model, LIMITS), text)
    assert found.ids == greedy(text, 4)
    assert found.diffusion_steps == 0
    assert found.forward_passes == len(model.rows)
    assert sum(model.rows) == length + 3  # the last draft is not read
    assert found.peak_activation_bytes == max(
        1000 * rows + sum(model.rows[: i + 1]) for i, rows in enumerate(model.rows)
    )


@pytest.mark.spec("P-10")
@pytest.mark.parametrize("slack", [1 << 30, 65])
def test_a_call_costs_the_block_and_not_the_prefix(slack):
    model = ToyModel(slack=slack)
    proposer, rng = (
        AutoregressiveProposer(model, DraftingLimits(min_cache_len=2048)),
        random.Random(3),
    )
    text = some_text(1000)
    draft(proposer, text)
    for _ in range(40):
        drafted = draft(proposer, text).ids
        accepted = rng.randrange(5)
        text += [*drafted[:accepted], rng.randrange(2, VOCAB_SIZE)]
        model.rows.clear()
        assert draft(proposer, text).ids == greedy(text, 4)
        assert sum(model.rows) <= 2 + 3  # the last accepted and the verifier's own, then drafts
    assert proposer.cache.num_kept == 1


@pytest.mark.spec("P-10")
def test_a_text_that_outgrows_its_room_is_read_anew_a_few_times_only():
    model = ToyModel()
    proposer, text = AutoregressiveProposer(model, LIMITS), some_text(10)
    for each in some_text(2000, seed=2):
        text.append(each)
        draft(proposer, text, 1)
    assert model.num_opened == 6  # 64, 128 … 2048
    assert proposer.cache.num_kept == 1
    assert sum(model.rows) < 3 * len(text)


@pytest.mark.spec("P-10")
def test_texts_in_turns_keep_their_own_and_the_least_recent_goes():
    model = ToyModel()
    proposer = AutoregressiveProposer(model, DraftingLimits(max_caches=3, min_cache_len=256))
    texts = [some_text(100, seed=n) for n in range(3)]
    for _ in range(5):
        for text in texts:
            assert draft(proposer, text).ids == greedy(text, 4)
    assert (proposer.cache.num_kept, model.num_opened) == (3, 3)
    draft(proposer, some_text(100, seed=9))
    assert (proposer.cache.num_kept, model.num_opened) == (3, 4)
    model.rows.clear()
    draft(proposer, texts[2])
    assert sum(model.rows) == 4
    draft(proposer, texts[0])
    assert sum(model.rows) > 100


@pytest.mark.spec("P-10")
def test_the_bytes_are_bounded():
    model = ToyModel()
    limits = DraftingLimits(max_cache_bytes=6000, min_cache_len=256)
    proposer = AutoregressiveProposer(model, limits)
    for seed in range(6):
        draft(proposer, some_text(100, seed=seed))
        assert proposer.cache.num_bytes <= 6000
    assert proposer.cache.num_kept == 2
    with pytest.raises(Refused, match="RESOURCE_EXHAUSTED.*10240 bytes, 0 are held.* 6000"):
        draft(proposer, some_text(600))


@pytest.mark.spec("P-10")
def test_a_call_given_up_anywhere_leaves_whole_what_it_read():
    model, text = ToyModel(), some_text(200)
    proposer = AutoregressiveProposer(model, LIMITS)
    for num_jobs in range(1, 6):
        jobs = proposer.jobs(text, num_drafts=6, num_steps=1)
        for _ in range(num_jobs):
            next(jobs)
        jobs.close()
        other = [*text[: 30 * num_jobs], 5]
        assert draft(proposer, other).ids == greedy(other, 4)
    assert draft(proposer, text).ids == greedy(text, 4)


@pytest.mark.spec("P-10")
def test_calls_whose_jobs_interleave_do_not_meet():
    rng = random.Random(5)
    proposer = AutoregressiveProposer(ToyModel(), LIMITS)
    base = some_text(150)
    texts = [base, base[:140], [*base, 7], [*base[:80], 9], base]
    calls = {n: proposer.jobs(text, num_drafts=5, num_steps=1) for n, text in enumerate(texts)}
    found = {}
    while calls:
        number = rng.choice(list(calls))
        found[number] = step(calls[number])
        if found[number] is not None:
            del calls[number]
    assert {n: each.ids for n, each in found.items()} == {
        n: greedy(text, 5) for n, text in enumerate(texts)
    }


@pytest.mark.spec("P-10")
def test_more_calls_at_work_than_there_are_places_are_refused():
    proposer = AutoregressiveProposer(ToyModel(), DraftingLimits(max_caches=2))
    held = [proposer.jobs(some_text(100, seed=n), num_drafts=2, num_steps=1) for n in range(2)]
    for jobs in held:
        next(jobs)
    with pytest.raises(Refused, match="RESOURCE_EXHAUSTED.*2 prefixes .*limit is 2"):
        draft(proposer, some_text(50))
    held[0].close()
    assert draft(proposer, some_text(50)).ids == greedy(some_text(50), 4)
