"""The masked-diffusion model as it is trained, and as it is served."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kakeya.config.settings import Settings
from kakeya.embedded.models import TINY_FOLDER
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.node.draft_models import load_proposer
from kakeya.training.decoder_torch import DecoderShape
from kakeya.training.dlm_torch import (
    BLOCK_LEN,
    MaskedBlocks,
    block_logits,
    denoised,
    masked_loss,
)
from kakeya.training.drafter_torch import load_tiny
from tests.drafting.toy_model import finished

SHAPE = DecoderShape()
IDS = torch.from_numpy(np.random.default_rng(3).integers(4, 2048, (1, 160)))


@pytest.fixture(scope="module")
def params():
    stored = load_file(TINY_FOLDER / "dlm" / "model.safetensors")
    return {name: weight.float() for name, weight in stored.items()}


@pytest.mark.spec("P-11", "V-16")
@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_what_is_trained_is_what_is_served(params, num_steps):
    choice = resolve_by_prefix("tiny-dlm")
    proposer = load_proposer(Settings(), choice, lambda words, share: None).proposer
    anchors = torch.tensor([5, 40, 150])  # 150: beyond the sliding window
    wanted = denoised(params, SHAPE, IDS, anchors, num_steps)[0]
    for anchor, drafts in zip(anchors.tolist(), wanted.tolist(), strict=True):
        prefix = IDS[0, : anchor + 1].tolist()
        found = finished(proposer.jobs(prefix, num_drafts=BLOCK_LEN - 1, num_steps=num_steps))
        assert list(found.ids) == drafts


def test_a_block_sees_the_text_before_it_and_itself_alone(params):
    anchors = torch.tensor([20, 28])
    noisy = IDS[:, anchors[:, None] + torch.arange(BLOCK_LEN)].clone()
    wanted = torch.ones(1, 2, BLOCK_LEN - 1, dtype=torch.bool)

    def logits(ids, blocks):
        found = block_logits(params, SHAPE, ids, MaskedBlocks(anchors, blocks), wanted)
        return found.view(2, BLOCK_LEN - 1, -1)

    with torch.no_grad():
        plain = logits(IDS, noisy)
        behind, other, own = IDS.clone(), noisy.clone(), noisy.clone()
        behind[:, 20:] = 7
        other[:, 1, 1:] = 7
        own[:, 0, -1] = 7
        assert torch.allclose(logits(behind, noisy)[0], plain[0], atol=1e-4)
        assert not torch.allclose(logits(behind, noisy)[1], plain[1], atol=1e-2)
        assert torch.allclose(logits(IDS, other)[0], plain[0], atol=1e-4)
        assert not torch.allclose(logits(IDS, own)[0, 0], plain[0, 0], atol=1e-4)


def test_a_step_depends_on_its_seed_alone(params):
    tiny = load_tiny(TINY_FOLDER / "verifier")
    with torch.no_grad():
        losses = [
            masked_loss(params, tiny, IDS, np.random.default_rng((1, 7, step))).item()
            for step in (4, 4, 5)
        ]
    assert losses[0] == losses[1] != losses[2]
