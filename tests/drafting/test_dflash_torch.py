from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_bounds import slots_for
from kakeya.drafting.dflash_config import read_dflash_config
from kakeya.drafting.dflash_context_torch import SlabAttention, TorchContext
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter
from kakeya.drafting.dflash_torch import block_hidden, context_features, context_rows, embed
from kakeya.drafting.dflash_weights_torch import VerifierEnds
from kakeya.drafting.drafter import RestorePlan
from kakeya.errors import Refused
from kakeya.wire.tensor import WireArray
from tests.drafting.dflash_checkpoints import (
    Pair,
    Reference,
    extended,
    load,
    some_aux,
    wired,
    write_pair,
)
from tests.drafting.dflash_shapes import BLOCK_LEN, CONFIG, DRAFTERS, VOCAB_SIZE, WINDOW


@pytest.fixture(scope="module", params=list(DRAFTERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("full"), "full")


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


@pytest.mark.spec("M-01", "M-05")
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


@pytest.mark.spec("M-02")
def test_the_contexts_k_and_v_stand_at_their_positions_as_in_the_reference(pair: Pair):
    ours, theirs = pair.ours, Reference(pair.theirs, pair.ends)
    aux = some_aux(60, ours.shape.num_aux, seed=2)
    context = extended(ours, None, 0, aux, chunk_lens=[1, 9, 30])
    theirs.extend(aux)
    theirs.hidden(5, 4)
    num_kv_heads = ours.config.num_kv_heads
    for layer, held in enumerate(theirs.cache.layers):
        length = held.keys.shape[2]  # a sliding layer has its window only
        slots = context.slab[layer, :, 60 - length : 60]
        assert close(slots[:num_kv_heads], held.keys[0])
        assert close(slots[num_kv_heads:], held.values[0])
        # Another position's K is far from it.
        assert not close(slots[:num_kv_heads, 7:], held.keys[0, :, :-7], 1e-2)


def test_a_contexts_k_can_be_read_as_it_was_before_it_was_turned(pair: Pair):
    ours, c = pair.ours, pair.ours.config
    aux = some_aux(60, ours.shape.num_aux, seed=2)
    found = ours.read(extended(ours, None, 0, aux), 9, 44)
    with torch.inference_mode():
        rows = context_rows(c, ours.weights, context_features(c, ours.weights, aux[9:44]))
    assert found.k.shape == (35, c.num_layers, c.num_kv_heads, c.head_dim)
    assert close(found.k, rows.k)
    assert close(found.v, rows.v)


@pytest.mark.spec("M-02")
@pytest.mark.parametrize("chunk_len", [1, 2, 7, 25, 64])
def test_a_context_does_not_depend_on_how_it_was_cut(pair: Pair, chunk_len: int):
    ours, length = pair.ours, 50
    aux = some_aux(length, ours.shape.num_aux, seed=3)
    seed = extended(ours, None, 0, aux)
    context = extended(ours, None, 0, aux, chunk_lens=[chunk_len] * length)
    assert close(context.slab[:, :, :length], seed.slab[:, :, :length], 1e-5)
    assert ours.draft(context, length, 3, 7).ids == ours.draft(seed, length, 3, 7).ids


@pytest.mark.spec("M-03")
def test_what_lies_beyond_the_context_never_matters(pair: Pair):
    ours = pair.ours
    aux = some_aux(40, ours.shape.num_aux, seed=5)
    fresh = ours.draft(extended(ours, None, 0, aux[:23]), 23, 9, 6)
    context = extended(ours, None, 0, aux)
    assert ours.draft(context, 23, 9, 6) == fresh
    # Blocks of every length were written behind it; nothing of them is seen.
    for num_drafts in range(1, BLOCK_LEN):
        ours.draft(context, 23, num_drafts, num_drafts)
    with torch.inference_mode():
        context.slab[:, :, 23:] = torch.nan
    assert ours.draft(context, 23, 9, 6) == fresh
    # Rows written again after they were taken back are the ones that count.
    again = extended(ours, context, 23, aux[23:])
    assert again is context
    assert ours.draft(again, 40, 9, 6) == ours.draft(extended(ours, None, 0, aux), 40, 9, 6)


@pytest.mark.spec("M-06")
def test_context_bytes_are_known_before_and_never_fall():
    config = read_dflash_config(CONFIG)
    sizes = [slots_for(config, length, 64) for length in range(1, 513)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 10
    assert all(s >= min(n + BLOCK_LEN, 512) for n, s in enumerate(sizes, start=1))


@pytest.mark.spec("M-06")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_context_takes_the_bytes_that_were_said(pair: Pair, dtype: str):
    drafter = load(pair.folder, pair.ends, dtype=dtype)
    context, length = None, 0
    for seed in range(16):
        context = extended(drafter, context, length, some_aux(32, drafter.shape.num_aux, seed=seed))
        length += 32
        assert context.resident_bytes == drafter.context_bytes(length)
    assert drafter.context_bytes(0) == 0


def test_the_cost_of_growing_is_a_few_times_the_context():
    config = replace(read_dflash_config(CONFIG), max_context_len=1 << 17)
    sizes = {slots_for(config, length, 64) for length in range(1, 1 << 17, 64)}
    assert sum(sizes) < 8 * (1 << 17)


@pytest.mark.spec("M-07")
@pytest.mark.parametrize(
    ("context_len", "bonus", "num_drafts", "status", "why"),
    [
        (40, 151, 3, "INVALID_ARGUMENT", "the bonus is 151, the vocabulary is 0 to 150"),
        (40, -1, 3, "INVALID_ARGUMENT", "the bonus is -1"),
        (40, 1 << 32, 3, "INVALID_ARGUMENT", "the bonus is 4294967296"),
        (40, 5, 0, "INVALID_ARGUMENT", "num_drafts is 0, it must be 1 to 15"),
        (40, 5, 16, "INVALID_ARGUMENT", "num_drafts is 16, it must be 1 to 15"),
        (509, 5, 3, "OUT_OF_RANGE", "the block would reach 513 positions, the drafter has 512"),
    ],
)
def test_a_block_that_cannot_be_drafted_is_refused(
    full: Pair, context_len: int, bonus: int, num_drafts: int, status: str, why: str
):
    context = extended(full.ours, None, 0, some_aux(40, 3, seed=1))
    with pytest.raises(Refused, match=why) as refused:
        full.ours.draft(context, context_len, bonus, num_drafts)
    assert refused.value.status == status


@pytest.mark.spec("M-07")
@pytest.mark.parametrize(
    ("aux", "at", "status", "why"),
    [
        (torch.ones(4, 96), 0, "INVALID_ARGUMENT", "there are 2 aux arrays, the drafter takes 3"),
        (torch.ones(65, 144), 0, "INVALID_ARGUMENT", "aux has 65 rows, it must have 1 to 64"),
        (torch.ones(0, 144), 0, "INVALID_ARGUMENT", "aux has 0 rows"),
        (torch.ones(4, 144), 509, "OUT_OF_RANGE", "would reach 513 positions"),
        (torch.ones(4, 144), -1, "OUT_OF_RANGE", "would reach 3 positions"),
    ],
)
def test_aux_that_does_not_fit_is_refused_and_nothing_is_written(
    full: Pair, aux: Tensor, at: int, status: str, why: str
):
    context = extended(full.ours, None, 0, some_aux(40, 3, seed=1))
    before = context.slab.clone()
    with pytest.raises(Refused, match=why) as refused:
        full.ours.extend(context, at, wired(aux))
    assert refused.value.status == status
    assert torch.equal(context.slab, before)


@pytest.mark.spec("M-07")
def test_aux_of_another_shape_is_refused_by_its_index(full: Pair):
    arrays = wired(some_aux(4, 3, seed=1))
    arrays[1] = WireArray("float32", np.ones((4, 47), dtype=np.float32))
    with pytest.raises(Refused, match=r"aux\[1\] has shape \[4, 47\], expected \[4, 48\]"):
        full.ours.extend(None, 0, arrays)


def test_the_last_positions_are_drafted_for(full: Pair):
    context = extended(full.ours, None, 0, some_aux(512, 3, seed=1))
    assert len(full.ours.draft(context, 496, 5, 15).ids) == 15
    assert full.ours.shape.max_context_len == 512


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_aux_comes_in_any_dtype_of_the_wire(full: Pair, dtype: str):
    aux = some_aux(20, 3, seed=6)
    rough = aux.to(getattr(torch, dtype))
    context = full.ours.extend(None, 0, wired(rough))
    exact = full.ours.extend(None, 0, wired(rough.to(torch.float32)))
    assert torch.equal(context.slab, exact.slab)
    assert not torch.equal(context.slab, full.ours.extend(None, 0, wired(aux)).slab)


@pytest.mark.spec("M-01")
def test_bfloat16_stays_near_float32(pair: Pair):
    rough = load(pair.folder, pair.ends, dtype="bfloat16")
    aux = some_aux(50, pair.ours.shape.num_aux, seed=8)
    ours, theirs = extended(rough, None, 0, aux), extended(pair.ours, None, 0, aux)
    assert ours.slab.dtype == torch.bfloat16
    near = our_hidden(rough, ours, 50, 5, 8).to(torch.float32)
    exact = our_hidden(pair.ours, theirs, 50, 5, 8)
    assert float((near - exact).norm() / exact.norm()) < 0.1
    assert len(rough.draft(ours, 50, 5, 7).ids) == 7


@pytest.mark.spec("M-04")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_give_ids_all_the_same(pair: Pair, bad: float):
    ours = pair.ours
    aux = some_aux(20, ours.shape.num_aux, seed=8)
    aux[11] = bad
    context = extended(ours, None, 0, aux)
    for num_drafts in (1, 15):
        ids = ours.draft(context, 20, 5, num_drafts).ids
        assert len(ids) == num_drafts
        assert all(type(each) is int and 0 <= each < VOCAB_SIZE for each in ids)


@pytest.mark.spec("M-04")
@pytest.mark.parametrize("name", ["full", "second"])
def test_of_equal_logits_the_lowest_id_is_drafted(tmp_path: Path, name: str):
    seed = 13
    pair = write_pair(tmp_path, name)
    context = extended(pair.ours, None, 0, some_aux(20, 3, seed=seed))
    best = pair.ours.draft(context, 20, 5, 1).ids[0]
    # The best id's row again, at a lower and at a higher id: all three win.
    low, high = (best - 40) % VOCAB_SIZE, (best + 40) % VOCAB_SIZE
    head = pair.ends.head.clone()
    head[[low, high]] = head[best].clone()
    ends = VerifierEnds(pair.ends.embedding, head)
    weights = load_file(tmp_path / "model.safetensors")
    for each in weights:
        if "successor" in each:
            weights[each][[low, high]] = weights[each][best].clone()
    save_file(weights, tmp_path / "model.safetensors")
    drafter = load(tmp_path, ends)
    context = extended(drafter, None, 0, some_aux(20, 3, seed=seed))
    assert drafter.draft(context, 20, 5, 1).ids == (min(low, high, best),)


def test_contexts_of_two_sessions_do_not_touch(full: Pair):
    ours = full.ours
    first, second = (some_aux(30, 3, seed=each) for each in (1, 2))
    alone = ours.draft(extended(ours, None, 0, first), 30, 4, 9)
    a, b = extended(ours, None, 0, first[:20]), extended(ours, None, 0, second)
    ours.draft(b, 30, 4, 9)
    a = extended(ours, a, 20, first[20:])
    assert ours.draft(a, 30, 4, 9) == alone
    assert ours.draft(b, 30, 4, 9) != alone


@pytest.mark.spec("M-12")
def test_without_f_theta_there_are_no_banks_and_with_one_they_are_its_own(full: Pair):
    plan = RestorePlan(prompt_ids=(1, 2, 3), sink=1, window=1, omits_full_layers=False)
    assert list(full.ours.restore(plan, None, 0)) == []
    context = extended(full.ours, None, 0, some_aux(3, 3, seed=1))

    class Echo:
        def restore(self, drafter, asked, held, context_len):
            yield None
            yield (drafter, asked, held, context_len)

    drafter = DflashTorchDrafter(
        full.ours.config,
        full.ours.weights,
        model_id="m",
        limits=DrafterLimits(),
        restorer=Echo(),
    )
    assert list(drafter.restore(plan, context, 3)) == [None, (drafter, plan, context, 3)]


def test_a_draft_says_what_it_cost(full: Pair):
    context = extended(full.ours, None, 0, some_aux(3, 3, seed=1))
    short, long = (full.ours.draft(context, 3, 5, n) for n in (1, 15))
    assert (short.forward_passes, short.diffusion_steps) == (1, 1)
    assert 0 < short.peak_activation_bytes < long.peak_activation_bytes
