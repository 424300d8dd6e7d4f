"""Over many seeds the text follows the model's own distribution, with drafts and without."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from kakeya.decoding import Reshaping, Sampling
from kakeya.decoding.sampling import choose
from kakeya.decoding.source import Place
from kakeya.verifying.verifier import Rows
from tests.decoding.toy import (
    VOCAB_SIZE,
    FakeSource,
    ToyVerifier,
    engine_for,
    peers_of,
    rough_table,
    run,
)

# One false alarm in ten thousand draws of seeds; the seeds are fixed.
SIGMAS = 3.72


def too_far(counts: np.ndarray, shares: np.ndarray) -> bool:
    """Pearson's chi-square test, by Wilson and Hilferty's approximation of its quantile."""
    expected = shares * counts.sum()
    rare = expected < 5  # pooled: the test wants enough in every cell
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + SIGMAS * math.sqrt(2 / (9 * freedom))) ** 3
    sys.stdout.write(f"chi-square {chi2:.1f}, bound {bound:.1f}\n")
    return chi2 > bound


def softmax(logits: Sequence[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


@pytest.mark.spec("D-13", "D-30")
@pytest.mark.parametrize(
    ("sampling", "change"),
    [
        (Sampling(1.0), lambda logits: logits),
        (Sampling(0.6), lambda logits: logits / 0.6),
        (Sampling(1.0, reshaping=Reshaping(biases=((2, 1.5),))), lambda x: x + 1.5 * (_ids == 2)),
        (Sampling(1.0, top_k=5), lambda x: np.where(x >= np.sort(x)[-5], x, -np.inf)),
    ],
    ids=["as it is", "temperature", "bias", "top_k"],
)
def test_the_choice_over_seeds_follows_the_softmax(sampling, change):
    logits = np.random.default_rng(4).normal(size=VOCAB_SIZE).astype(np.float32)
    rows = Rows((0,), (0.0,), logits[None])
    counts = np.zeros(VOCAB_SIZE, dtype=int)
    for seed in range(8_000):
        mine = Sampling(
            sampling.temperature, top_k=sampling.top_k, seed=seed, reshaping=sampling.reshaping
        )
        counts[choose(rows, mine, first_position=9, bound=0.0).ids[0]] += 1
    assert not too_far(counts, softmax(list(change(logits.astype(float)))))


_ids = np.arange(VOCAB_SIZE)


@pytest.mark.spec("D-13")
@pytest.mark.parametrize("num_drafts", [0, 3])
async def test_the_third_id_over_seeds_has_its_marginal_distribution(num_drafts, autojump_clock):
    """Drafts are the most likely ids: a rule that took them too gladly would show."""
    table = (1.5 * rough_table(6)).astype(np.float32)
    shares = np.apply_along_axis(softmax, 2, table.astype(float))
    prompt = [5, 7]
    first = shares[5, 7]
    second = np.einsum("a,ab->ab", first, shares[7])
    third = np.einsum("ab,abc->c", second, shares)

    def likeliest(committed, count):
        seen = list(committed)
        for _ in range(count):
            seen.append(int(np.argmax(table[seen[-2], seen[-1]])))
        return seen[len(committed) :]

    engine = engine_for(ToyVerifier(table))
    peers = peers_of(engine, FakeSource(Place("cellar", "there:1", "toy"), likeliest))
    counts, accepted = np.zeros(VOCAB_SIZE, dtype=int), 0
    for seed in range(800):
        outcome = await run(
            engine, prompt, peers, max_tokens=4, num_drafts=num_drafts,
            sampling=Sampling(1.0, seed=seed),
        )  # fmt: skip
        counts[outcome.ids[2]] += 1
        accepted += outcome.tally.num_accepted
    assert (accepted > 100) is bool(num_drafts)
    assert not too_far(counts, third)


def test_the_test_sees_a_wrong_distribution():
    shares = softmax(list(np.random.default_rng(4).normal(size=VOCAB_SIZE)))
    wrong = shares.copy()
    wrong[np.argmax(wrong)] *= 0.8
    counts = np.random.default_rng(1).multinomial(8_000, wrong / wrong.sum())
    assert too_far(counts, shares)
