"""K/V mode restored: banks in the place of the evicted middle of the prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kakeya.errors import Refused
from kakeya.verifying.model_torch import TorchVerifier
from kakeya.verifying.verifier import Bank, KvPlan
from tests.verifying.checkpoints import equal_as_measured, filled, full_plan, some_ids
from tests.verifying.conftest import Pair

PROMPT_LEN = 150
PLAN = KvPlan("restored", sink=4, window=40, max_len=400, prompt_len=PROMPT_LEN)
EVICTED = range(4, PROMPT_LEN - 40)


def true_banks(pair: Pair, ids: list[int], *, rows: range) -> list[Bank]:
    """What the layers' own k_proj and v_proj put out: an f_θ without any error."""
    model, seen = pair.theirs, {}
    hooks = []
    for i, layer in enumerate(model.model.layers):
        for name in ("k_proj", "v_proj"):
            linear = getattr(layer.self_attn, name, None)
            if linear is not None:
                hooks.append(
                    linear.register_forward_hook(
                        lambda _m, _in, out, key=(i, name): seen.__setitem__(key, out[0])
                    )
                )
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    banks = []
    for i in range(pair.ours.geometry.num_layers):
        own = pair.ours.geometry.kv_shape(i)
        if own is not None:
            k = seen[i, "k_proj"].view(len(ids), *own)[list(rows)].numpy()
            # Where there is no v_proj, V is what k_proj puts out.
            v = seen.get((i, "v_proj"), seen[i, "k_proj"]).view(len(ids), *own)[list(rows)].numpy()
            banks.append(Bank(i, "float32", k, v))
    return banks


def restored(verifier: TorchVerifier, plan: KvPlan, ids: list[int], banks: list[Bank]):
    kv = filled(verifier, plan, ids[: plan.prompt_len - 1], 64)
    verifier.restore(kv, banks)
    return kv


@pytest.mark.spec("V-13")
@pytest.mark.parametrize("rows", [EVICTED, range(PROMPT_LEN)])
def test_the_layers_own_k_and_v_as_banks_change_nothing(pair: Pair, rows: range):
    ids = some_ids(PROMPT_LEN)
    last = ids[-1:]
    banks = true_banks(pair, ids, rows=rows)
    kv = restored(pair.ours, PLAN, ids, banks)
    full = filled(pair.ours, full_plan(), ids[: PROMPT_LEN - 1], 64)
    ours, theirs = (pair.ours.forward(each, last, want_logits=True) for each in (kv, full))
    assert np.abs(ours.logits - theirs.logits).max() <= 1e-4 * np.abs(theirs.logits).max()


@pytest.mark.spec("V-13")
def test_banks_matter_where_they_can_be_seen(pair: Pair):
    ids = some_ids(PROMPT_LEN)
    banks = true_banks(pair, ids, rows=EVICTED)
    wrong = [replace(bank, v=bank.v + 1) for bank in banks]
    rows = [
        pair.ours.forward(restored(pair.ours, PLAN, ids, each), ids[-1:], want_logits=True)
        for each in (banks, wrong)
    ]
    assert not np.allclose(rows[0].logits, rows[1].logits)


@pytest.mark.spec("V-13", "V-05")
def test_a_block_equals_steps_over_banks_to_the_bit(pair: Pair):
    ids = some_ids(PROMPT_LEN + 80)
    banks = true_banks(pair, ids[:PROMPT_LEN], rows=EVICTED)
    steps, blocks = (restored(pair.ours, PLAN, ids, banks) for _ in range(2))
    one = [
        pair.ours.forward(steps, ids[at : at + 1], want_logits=True).logits[0]
        for at in range(PROMPT_LEN - 1, PROMPT_LEN + 71)
    ]
    many: list[np.ndarray] = []
    for at in range(PROMPT_LEN - 1, PROMPT_LEN + 71, 8):
        rows = pair.ours.forward(blocks, [*ids[at : at + 8], 1, 2], want_logits=True)
        many.extend(rows.logits[:8])
        pair.ours.trim(blocks, at + 8)
    assert equal_as_measured(pair.ours, np.stack(many), np.stack(one))


@pytest.mark.spec("V-13")
def test_resident_bytes_are_bounded_by_prompt_and_window(pair: Pair):
    short = pair.ours.kv_bytes(replace(PLAN, max_len=400))
    long = pair.ours.kv_bytes(replace(PLAN, max_len=512))
    assert short == long < pair.ours.kv_bytes(replace(full_plan(), max_len=512))


@pytest.mark.spec("V-13")
def test_a_prompt_within_the_window_needs_no_banks(pair: Pair):
    plan = replace(PLAN, window=200, max_len=500)
    ids = some_ids(PROMPT_LEN)
    kv = restored(pair.ours, plan, ids, [])
    full = filled(pair.ours, full_plan(), ids[:-1], 64)
    ours, theirs = (pair.ours.forward(each, ids[-1:], want_logits=True) for each in (kv, full))
    assert ours.ids == theirs.ids
    assert np.abs(ours.logits - theirs.logits).max() <= 1e-4 * np.abs(theirs.logits).max()


@pytest.mark.spec("V-13")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda b: b[:-1], "layers have banks, it must be all"),
        (lambda b: [], "layers have banks, it must be all"),
        (lambda b: [*b, b[0]], "two banks are for one layer"),
        (lambda b: [*b[:-1], replace(b[-1], layer=99)], "layer 99, the model has 0 to"),
        (lambda b: [replace(b[0], k=b[0].k[:-1]), *b[1:]], "k of layer 0 has shape"),
        (lambda b: [replace(b[0], v=b[0].v[:, :, :-1]), *b[1:]], "v of layer 0 has shape"),
        (lambda b: [replace(b[0], k=b[0].k * np.nan), *b[1:]], "not finite"),
        (lambda b: [replace(b[0], dtype="int32"), *b[1:]], "int32"),
    ],
)
def test_banks_that_do_not_fit_are_refused_and_change_nothing(pair: Pair, spoil, words):
    ids = some_ids(PROMPT_LEN)
    banks = true_banks(pair, ids, rows=EVICTED)
    kv = filled(pair.ours, PLAN, ids[:-1], 64)
    with pytest.raises(Refused, match=words):
        pair.ours.restore(kv, spoil(banks))
    pair.ours.restore(kv, banks)
    good = pair.ours.forward(kv, ids[-1:], want_logits=True)
    again = pair.ours.forward(restored(pair.ours, PLAN, ids, banks), ids[-1:], want_logits=True)
    assert np.array_equal(good.logits, again.logits)
