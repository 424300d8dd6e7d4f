"""A block of masks, denoised in a few steps."""

from __future__ import annotations

import numpy as np
import pytest

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.diffusion import DiffusionProposer, Masking
from kakeya.drafting.unmasking import most_certain, num_revealed
from tests.drafting.test_autoregressive import some_text
from tests.drafting.toy_model import MASK_ID, ToyModel, finished, greedy

LIMITS = DraftingLimits(min_cache_len=64)


def draft(model, ids, *, num_drafts=7, num_steps=1, block_len=8):
    proposer = DiffusionProposer(model, Masking(MASK_ID, block_len), LIMITS)
    return finished(proposer.jobs(ids, num_drafts=num_drafts, num_steps=num_steps))


@pytest.mark.spec("P-11")
@pytest.mark.parametrize(
    ("num_masks", "num_steps", "shares"),
    [(7, 1, (7,)), (7, 2, (4, 3)), (7, 4, (2, 2, 2, 1)), (7, 1024, (1,) * 7), (1, 3, (1,))],
)
def test_the_shares_are_even_and_no_step_is_idle(num_masks, num_steps, shares):
    assert num_revealed(num_masks, num_steps) == shares


@pytest.mark.spec("P-11")
def test_the_most_certain_are_kept_the_earlier_on_a_tie():
    assert most_certain([0.1, 0.5, 0.5, 0.9, 0.5], [0, 1, 2, 4], 2) == [1, 2]


@pytest.mark.spec("P-11", "P-12")
@pytest.mark.parametrize(("num_steps", "passes"), [(1, 1), (2, 2), (4, 4), (7, 7), (1000, 7)])
def test_the_steps_reported_are_those_run(num_steps, passes):
    model, text = ToyModel(), some_text(40)
    found = draft(model, text, num_steps=num_steps)
    assert len(found.ids) == 7
    assert MASK_ID not in found.ids
    assert found.diffusion_steps == passes
    assert found.forward_passes == len(model.rows) == 1 + passes  # the prefix in one piece
    assert found.peak_activation_bytes == 39 * 1000 + 39


@pytest.mark.spec("P-11")
def test_one_id_a_step_from_the_left_is_the_models_own_text():
    """The toy is surest behind what is known, so seven steps go from left to right."""
    text = some_text(40)
    assert draft(ToyModel(), text, num_steps=7).ids == greedy(text, 7)
    assert draft(ToyModel(), text, num_steps=1).ids != greedy(text, 7)
    assert draft(ToyModel(), text, num_steps=1).ids[:1] == greedy(text, 1)


@pytest.mark.spec("P-11", "P-12")
@pytest.mark.parametrize("num_drafts", [1, 8, 14, 20])
def test_more_drafts_than_a_block_has_are_made_block_by_block(num_drafts):
    text = some_text(40)
    found = draft(ToyModel(), text, num_drafts=num_drafts, num_steps=7)
    assert found.ids == greedy(text, num_drafts)
    assert found.diffusion_steps == num_drafts


@pytest.mark.spec("P-10")
def test_a_prefix_that_grew_is_not_read_again():
    model, text = ToyModel(slack=65), some_text(500)
    proposer = DiffusionProposer(model, Masking(MASK_ID, 8), DraftingLimits())
    for _ in range(10):
        found = finished(proposer.jobs(text, num_drafts=7, num_steps=2))
        text += [*found.ids[:2], 9]
        model.rows.clear()
        assert finished(proposer.jobs(text, num_drafts=7, num_steps=2)) is not None
        assert model.rows == [3, 8, 8]


@pytest.mark.spec("P-11")
def test_logits_that_are_no_numbers_still_give_ids_and_no_mask():
    class Broken(ToyModel):
        def denoise(self, kv, ids):
            return np.full_like(super().denoise(kv, ids), np.nan)

    found = draft(Broken(), some_text(10), num_steps=3)
    assert len(found.ids) == 7
    assert MASK_ID not in found.ids
