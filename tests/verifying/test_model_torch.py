from __future__ import annotations

import numpy as np
import pytest

from kakeya.errors import Refused
from kakeya.verifying.verifier import KvPlan
from tests.verifying.checkpoints import (
    VOCAB_SIZE,
    filled,
    full_plan,
    load,
    logits_by_steps,
    reference_logits,
    some_ids,
)
from tests.verifying.conftest import Pair

LENGTH = 150


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.abs(ours - theirs).max() <= 1e-4 * max(1.0, np.abs(theirs).max()))


@pytest.mark.spec("V-12", "V-02")
def test_logits_and_ids_equal_those_of_transformers(pair: Pair):
    ids = some_ids(LENGTH)
    theirs = reference_logits(pair.theirs, ids)
    kv = pair.ours.open(full_plan())
    rows = [pair.ours.forward(kv, ids[at : at + 50], want_logits=True) for at in (0, 50, 100)]
    assert close(np.concatenate([r.logits for r in rows]), theirs)
    assert [i for r in rows for i in r.ids] == theirs.argmax(1).tolist()


@pytest.mark.spec("V-04")
@pytest.mark.parametrize("chunk_len", [1, 7, 64, LENGTH])
def test_results_do_not_depend_on_how_the_prompt_is_cut(pair: Pair, chunk_len: int):
    verifier = load(pair.folder, max_prefill_chunk_len=LENGTH)
    ids = some_ids(LENGTH + 1)
    last = verifier.forward(
        filled(verifier, full_plan(), ids[:-1], chunk_len), ids[-1:], want_logits=True
    )
    theirs = reference_logits(pair.theirs, ids)[-1:]
    assert close(last.logits, theirs)
    assert last.ids == (int(theirs.argmax()),)


@pytest.mark.spec("V-05")
def test_these_checkpoints_are_measured_exact_on_this_machine(pair: Pair):
    assert pair.ours.margin_bound == 0.0


@pytest.mark.spec("V-05")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("prefix_len", [1, 30, 60, 63, 250, 500, 511, 570])
def test_a_block_equals_steps_to_the_bit(pair: Pair, dtype: str, prefix_len: int):
    verifier = pair.ours if dtype == "float32" else load(pair.folder, dtype=dtype)
    ids = some_ids(prefix_len + 17)
    prefix, behind = ids[:prefix_len], ids[prefix_len:]
    steps = logits_by_steps(verifier, filled(verifier, full_plan(), prefix), behind)
    kv = filled(verifier, full_plan(), prefix)
    for block_len in range(1, len(behind) + 1):
        block = verifier.forward(kv, behind[:block_len], want_logits=True).logits
        assert np.array_equal(block, steps[:block_len]), block_len
        verifier.trim(kv, prefix_len)


@pytest.mark.spec("V-05")
def test_rows_are_equal_at_every_offset_of_a_block(pair: Pair):
    ids = some_ids(40)
    steps = logits_by_steps(pair.ours, pair.ours.open(full_plan()), ids)
    for first in range(1, 9):
        kv = pair.ours.open(full_plan())
        pair.ours.forward(kv, ids[:first])
        block = pair.ours.forward(kv, ids[first : first + 20], want_logits=True).logits
        assert np.array_equal(block, steps[first : first + 20]), first


@pytest.mark.spec("V-08")
def test_forgotten_tokens_leave_no_trace(pair: Pair):
    ids = some_ids(40)
    plain = logits_by_steps(pair.ours, filled(pair.ours, full_plan(), ids[:20]), ids[20:])
    kv = filled(pair.ours, full_plan(), ids[:20])
    at = 20
    for accepted in (1, 3, 2, 5, 1):
        wrong = some_ids(8 - accepted, seed=at)
        rows = pair.ours.forward(kv, ids[at : at + accepted] + wrong, want_logits=True)
        assert np.array_equal(rows.logits[:accepted], plain[at - 20 : at - 20 + accepted])
        at += accepted
        pair.ours.trim(kv, at)
        assert kv.length == at


@pytest.mark.spec("V-08")
@pytest.mark.parametrize("length", [84, 151])
def test_trim_refuses_what_it_cannot_forget(sliding: Pair, length: int):
    kv = filled(sliding.ours, full_plan(), some_ids(145))
    sliding.ours.forward(kv, some_ids(5))
    with pytest.raises(Refused, match=f"length is {length}, it must be from 85 to 150"):
        sliding.ours.trim(kv, length)


@pytest.mark.spec("V-08")
def test_the_rows_of_many_passes_are_forgotten_without_a_trace(pair: Pair):
    ids = some_ids(160)
    plain = logits_by_steps(pair.ours, filled(pair.ours, full_plan(), ids[:100]), ids[100:120])
    kv = filled(pair.ours, full_plan(), ids[:100])
    for each in some_ids(60, seed=3):
        pair.ours.forward(kv, [each])
    pair.ours.trim(kv, 100)
    pair.ours.forward(kv, some_ids(30, seed=4))
    pair.ours.trim(kv, 100)
    assert close(logits_by_steps(pair.ours, kv, ids[100:120]), plain)


@pytest.mark.spec("V-16")
def test_the_rows_of_a_denoised_block_see_one_another_and_leave_nothing(pair: Pair):
    ids, block = some_ids(40), some_ids(6, seed=2)
    kv = filled(pair.ours, full_plan(), ids)
    first = pair.ours.denoise(kv, block)
    other = pair.ours.denoise(kv, [*block[:-1], block[-1] ^ 1])
    assert first.shape == (6, VOCAB_SIZE)
    assert np.abs(first[0] - other[0]).max() > 1e-3  # row 0 saw the last one change
    causal = pair.ours.forward(kv, block, want_logits=True).logits
    assert np.abs(causal[0] - first[0]).max() > 1e-3
    assert kv.length == 46
    pair.ours.trim(kv, 40)
    assert np.array_equal(pair.ours.denoise(kv, block), first)


def test_aux_is_the_output_of_the_layers_asked_for(pair: Pair):
    import torch

    ids = some_ids(30)
    with torch.no_grad():
        hidden = pair.theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
    rows = pair.ours.forward(pair.ours.open(full_plan()), ids, aux_layers=(2, 0))
    assert [each.shape for each in rows.aux] == [(30, pair.ours.geometry.hidden_size)] * 2
    assert close(rows.aux[0], hidden[3][0].numpy())
    assert close(rows.aux[1], hidden[1][0].numpy())


def test_asking_for_aux_and_logits_changes_no_id(pair: Pair):
    ids = some_ids(30)
    plain = pair.ours.forward(pair.ours.open(full_plan()), ids)
    asked = pair.ours.forward(pair.ours.open(full_plan()), ids, want_logits=True, aux_layers=(0, 3))
    assert plain.ids == asked.ids
    assert plain.margins == asked.margins
    assert plain.logits is None
    assert plain.aux == ()


def test_bfloat16_stays_near_float32(pair: Pair):
    rough = load(pair.folder, dtype="bfloat16")
    ids = some_ids(60)
    theirs = reference_logits(pair.theirs, ids)
    ours = rough.forward(rough.open(full_plan()), ids, want_logits=True).logits
    assert np.abs(ours - theirs).mean() < 0.02 * np.abs(theirs).max()
    assert rough.forward(rough.open(full_plan()), ids[:4], aux_layers=(1,)).aux[0].dtype == "uint16"


@pytest.mark.spec("V-09")
@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([], "there are no ids"),
        ([1, -1], "from -1 to 1, the vocabulary is 0 to 210"),
        ([1, VOCAB_SIZE], "from 1 to 211, the vocabulary is 0 to 210"),
        ([2**32 - 1], "the vocabulary is 0 to 210"),
        ([1] * 66, "the block has 66 rows, the limit is 65"),
        ([1] * 21, "10 positions and 21 more pass the plan's 30"),
    ],
)
def test_ids_that_cannot_be_appended_are_refused_and_nothing_is_written(
    sliding: Pair, ids: list[int], why: str
):
    kv = filled(sliding.ours, full_plan(30), some_ids(10))
    with pytest.raises(Refused, match=why):
        sliding.ours.forward(kv, ids)
    assert kv.length == 10


def test_an_aux_layer_that_does_not_exist_is_refused(sliding: Pair):
    with pytest.raises(Refused, match="aux layer is 4, the model has layers 0 to 3"):
        sliding.ours.forward(sliding.ours.open(full_plan()), [1], aux_layers=(4,))


@pytest.mark.spec("V-10")
def test_k_v_beyond_the_limit_is_refused_and_closing_one_makes_room(sliding: Pair):
    need = sliding.ours.kv_bytes(full_plan(600))
    verifier = load(sliding.folder, max_kv_bytes=2 * need + 1)
    held = [verifier.open(full_plan(600)) for _ in range(2)]
    assert [kv.resident_bytes for kv in held] == [need, need]
    with pytest.raises(Refused, match=f"takes {need} bytes, {2 * need} are held") as refused:
        verifier.open(full_plan(600))
    assert refused.value.status == "RESOURCE_EXHAUSTED"
    held.pop()
    verifier.open(full_plan(600))


@pytest.mark.parametrize(
    "plan",
    [
        full_plan(0),
        full_plan(1025),
        KvPlan("window", sink=-1, window=8, max_len=9),
        KvPlan("window", sink=0, window=0, max_len=9),
    ],
)
def test_a_plan_the_model_cannot_keep_is_refused(sliding: Pair, plan: KvPlan):
    with pytest.raises(Refused):
        sliding.ours.open(plan)
