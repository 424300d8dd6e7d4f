"""Copies what followed, goes on through itself, and costs what is new."""

from __future__ import annotations

import random
import sys
from array import array

import pytest

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.ngram import MAX_GRAM_LEN, Match, NgramIndex, NgramProposer

LIMITS = DraftingLimits()
LONG = 131_072


def index_of(ids) -> NgramIndex:
    index = NgramIndex()
    index.extend(ids)
    return index


def reference_match(ids: list[int]) -> Match:
    """The definition, read off the contract of the class."""
    for gram_len in range(min(MAX_GRAM_LEN, len(ids)), 0, -1):
        for end in range(len(ids) - 1, gram_len - 1, -1):
            if ids[end - gram_len : end] == ids[-gram_len:]:
                return Match(gram_len, end)
    return Match(0, len(ids) - 1)


@pytest.mark.spec("P-01")
@pytest.mark.parametrize("seed", range(20))
def test_the_longest_suffix_at_its_most_recent_place_is_found(seed):
    sys.stdout.write(f"seed {seed}\n")
    rng = random.Random(seed)
    ids = [rng.randrange(rng.choice([2, 3, 8, 50])) for _ in range(120)]
    index = NgramIndex()
    for length in range(1, len(ids) + 1):
        index.extend(ids[length - 1 : length])
        assert index.match() == reference_match(ids[:length])


@pytest.mark.spec("P-01")
def test_growing_at_once_or_one_by_one_is_the_same():
    ids = [1, 2, 3, 1, 2, 3, 4, 1, 2]
    index = NgramIndex()
    for each in ids:
        index.extend([each])
    assert index.match() == index_of(ids).match()
    assert index.draft(9) == index_of(ids).draft(9)


@pytest.mark.spec("P-02")
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7, 7, 7], [7] * 8),
        ([1, 2, 1, 2], [1, 2, 1, 2, 1, 2, 1, 2]),
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3, 9, 1, 2, 3]),
        ([5], [5] * 8),
        ([1, 2, 3], [3] * 8),  # nothing to copy
    ],
)
def test_the_copy_goes_on_through_its_own_output(ids, expected):
    assert list(index_of(ids).draft(8)) == expected


@pytest.mark.spec("P-02")
@pytest.mark.parametrize("num_drafts", [1, 2, 7, 64])
def test_a_draft_has_exactly_the_asked_length(num_drafts):
    assert len(index_of([1, 2, 3, 1]).draft(num_drafts)) == num_drafts


@pytest.mark.spec("P-03")
def test_a_growing_prefix_costs_what_is_new():
    rng = random.Random(1)
    prefix = array("I", [rng.randrange(49_152) for _ in range(LONG)])
    proposer = NgramProposer(LIMITS)
    proposer.propose(prefix, num_drafts=4, num_steps=1)
    for _ in range(20):
        before = proposer.num_entered
        prefix.extend(proposer.propose(prefix, num_drafts=4, num_steps=1).ids)
        proposer.propose(prefix, num_drafts=4, num_steps=1)
        assert proposer.num_entered - before == 4 * MAX_GRAM_LEN
    assert proposer.num_indexes == 1


@pytest.mark.spec("P-03")
def test_a_long_prefix_is_indexed_in_pieces():
    proposer = NgramProposer(DraftingLimits(index_piece_len=1000))
    prefix = list(range(4500))
    done = []
    while not done or not done[-1]:
        before = proposer.num_entered
        done.append(proposer.prepare(prefix))
        assert proposer.num_entered - before <= 1000 * MAX_GRAM_LEN
    assert done == [False] * 4 + [True]


@pytest.mark.spec("P-04")
def test_a_prefix_wound_back_or_changed_is_drafted_as_a_new_one():
    ids = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    proposer = NgramProposer(LIMITS)
    proposer.propose(ids, num_drafts=4, num_steps=1)
    for changed in (ids[:6], [*ids[:6], 9, 9], [0, *ids], ids[:1]):
        fresh = NgramProposer(LIMITS).propose(changed, num_drafts=6, num_steps=1)
        assert proposer.propose(changed, num_drafts=6, num_steps=1) == fresh


@pytest.mark.spec("P-04")
def test_indexes_are_bounded_in_number_and_bytes():
    by_count = NgramProposer(DraftingLimits(max_indexes=3))
    for start in range(10):
        by_count.propose([start, 1, 2], num_drafts=1, num_steps=1)
    assert by_count.num_indexes == 3
    most = 1 << 20
    by_bytes = NgramProposer(DraftingLimits(max_index_bytes=most))
    for start in range(20):
        by_bytes.propose([start, *range(500)], num_drafts=1, num_steps=1)
        assert by_bytes.resident_bytes <= most
    assert by_bytes.num_indexes >= 2


def test_the_stated_bytes_are_an_upper_bound():
    rng = random.Random(2)
    index = index_of([rng.randrange(1 << 32) for _ in range(20_000)])
    held = sys.getsizeof(index._raw) + sum(
        sys.getsizeof(ends) + sum(sys.getsizeof(key) for key in ends) for ends in index._ends
    )
    held += 20_000 * 32  # the positions, one integer shared by all gram lengths
    assert held <= index.resident_bytes


@pytest.mark.spec("P-04")
def test_two_generations_of_one_prompt_do_not_undo_each_other():
    proposer = NgramProposer(LIMITS)
    prompt = [1, 2, 3, 4] * 50
    a, b = [*prompt, 7], [*prompt, 8]
    for _ in range(5):
        for prefix in (a, b):
            prefix.extend(proposer.propose(prefix, num_drafts=2, num_steps=1).ids)
    before = proposer.num_entered
    proposer.propose(a, num_drafts=2, num_steps=1)
    assert proposer.num_entered - before <= 2 * MAX_GRAM_LEN
