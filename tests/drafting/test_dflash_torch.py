from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from kakeya.drafting.dflash_context_torch import SlabAttention, TorchContext
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter
from kakeya.drafting.dflash_torch import block_hidden, embed
from tests.drafting.dflash_checkpoints import (
    BLOCK_LEN,
    DRAFTERS,
    VOCAB_SIZE,
    WINDOW,
    Pair,
    Reference,
    extended,
    some_aux,
    write_pair,
)


@pytest.fixture(scope="module", params=list(DRAFTERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp(request.param), request.param)


def our_hidden(
    drafter: DflashTorchDrafter, context: TorchContext, context_len: int, bonus: int, block_len: int
) -> Tensor:
    """The masks' last hidden states, from the functions the engine calls."""
    ids = torch.full((block_len,), drafter.config.mask_id)
    ids[0] = bonus
    with torch.inference_mode():
        return block_hidden(
            drafter.config,
            drafter.weights,
            embed(drafter.config, drafter.weights, ids),
            drafter._turned(context_len, context_len + block_len),
            SlabAttention(drafter.config, context.slab, context_len, block_len),
        )[1:]


def close(ours: Tensor, theirs: Tensor, share: float = 1e-4) -> bool:
    return float((ours - theirs).abs().max()) <= share * max(1.0, float(theirs.abs().max()))


def test_hidden_states_and_drafts_equal_the_reference_over_many_blocks(pair: Pair):
    seed = 20
    rng = random.Random(seed)
    ours, theirs = pair.ours, Reference(pair.theirs, pair.ends)
    num_aux = ours.shape.num_aux
    # From inside the sliding window to four times its length and more.
    aux = some_aux(5, num_aux, seed=seed)
    context, context_len = None, 0
    for block in range(24):
        context = extended(ours, context, context_len, aux)
        theirs.extend(aux)
        context_len += len(aux)
        block_len = 2 + block % (BLOCK_LEN - 1)
        bonus = rng.randrange(VOCAB_SIZE)
        wanted = theirs.hidden(bonus, block_len)
        hidden = our_hidden(ours, context, context_len, bonus, block_len)
        assert close(hidden, wanted), (seed, block)
        drafted = ours.draft(context, context_len, bonus, block_len - 1)
        assert list(drafted.ids) == theirs.draft(wanted, bonus), (seed, block)
        # The bonus and some of the drafts are committed.
        aux = some_aux(rng.randint(1, block_len), num_aux, seed=seed + block + 1)
    assert context_len > 4 * WINDOW
