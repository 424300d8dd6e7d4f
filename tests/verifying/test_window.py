from __future__ import annotations

import numpy as np
import pytest

from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.window import Reach, hidden_slots, kept_positions, reach_of, slot_map
from tests.verifying.checkpoints import (
    SLIDING_WINDOW,
    equal_as_measured,
    filled,
    logits_by_steps,
    reference_logits,
    some_ids,
)
from tests.verifying.conftest import Pair
from tests.verifying.test_model_torch import close

PLANS = [
    KvPlan("window", sink=4, window=40, max_len=900),
    KvPlan("window", sink=0, window=7, max_len=900),
    KvPlan("window", sink=20, window=16, max_len=900),
]


def looks_at(row: int, position: int, plan: KvPlan, slide: int | None) -> bool:
    """The rule as the spec words it, position by position."""
    if position > row or (slide is not None and position <= row - slide):
        return False
    return plan.mode == "full" or position < plan.sink or position > row - plan.window


def hidden_matrix(length: int, plan: KvPlan, slide: int | None) -> np.ndarray:
    return np.array(
        [[not looks_at(r, p, plan, slide) for p in range(length)] for r in range(length)]
    )


@pytest.mark.spec("V-01", "V-02")
@pytest.mark.parametrize("plan", PLANS)
def test_window_mode_equals_a_reference_with_the_same_mask(pair: Pair, plan: KvPlan):
    ids = some_ids(400)
    theirs = reference_logits(
        pair.theirs,
        ids,
        {
            "full_attention": hidden_matrix(len(ids), plan, None),
            "sliding_attention": hidden_matrix(len(ids), plan, SLIDING_WINDOW),
        },
    )
    kv = filled(pair.ours, plan, ids[:370])
    rows = pair.ours.forward(kv, ids[370:], want_logits=True)
    assert close(rows.logits, theirs[370:])
    assert rows.ids == tuple(theirs[370:].argmax(1).tolist())


@pytest.mark.spec("V-05", "V-08")
@pytest.mark.parametrize("plan", PLANS)
def test_in_window_mode_a_block_equals_steps_to_the_bit_after_many_wraps(pair: Pair, plan: KvPlan):
    rng = np.random.default_rng(1)
    ids = some_ids(560)
    steps = logits_by_steps(pair.ours, filled(pair.ours, plan, ids[:500]), ids[500:])
    kv = filled(pair.ours, plan, ids[:500])
    at = 500
    while at < 540:
        accepted = int(rng.integers(1, 9))
        wrong = some_ids(8 - accepted, seed=at)
        rows = pair.ours.forward(kv, ids[at : at + accepted] + wrong, want_logits=True)
        wanted = steps[at - 500 : at - 500 + accepted]
        assert equal_as_measured(pair.ours, rows.logits[:accepted], wanted)
        at += accepted
        pair.ours.trim(kv, at)


@pytest.mark.spec("V-04")
def test_in_window_mode_results_do_not_depend_on_chunks(pair: Pair):
    ids = some_ids(300)
    found = [
        pair.ours.forward(filled(pair.ours, PLANS[0], ids[:-1], n), ids[-1:], want_logits=True)
        for n in (1, 7, 64)
    ]
    assert len({rows.ids for rows in found}) == 1
    assert close(found[0].logits, found[1].logits)
    assert close(found[0].logits, found[2].logits)


@pytest.mark.spec("V-03")
def test_resident_bytes_are_bounded_in_window_mode(pair: Pair):
    short = pair.ours.open(KvPlan("window", sink=4, window=40, max_len=300))
    long = pair.ours.open(KvPlan("window", sink=4, window=40, max_len=1024))
    full = pair.ours.open(KvPlan("full", sink=0, window=0, max_len=1024))
    assert long.resident_bytes == short.resident_bytes
    assert long.resident_bytes < full.resident_bytes / 2


def test_sliding_layers_keep_their_window_only(sliding: Pair):
    kv = sliding.ours.open(KvPlan("full", sink=0, window=0, max_len=1024))
    sizes = dict(zip(sliding.ours.geometry.layer_types, kv.slabs, strict=False))
    assert sizes["sliding_attention"].nbytes * 8 == sizes["full_attention"].nbytes


@pytest.mark.spec("V-01", "V-02")
@pytest.mark.parametrize("slide", [None, 5, 12, 30])
@pytest.mark.parametrize("plan", [*PLANS, KvPlan("full", sink=0, window=0, max_len=900)])
def test_kept_positions_are_those_the_next_row_looks_at(plan: KvPlan, slide: int | None):
    for length in range(1, 100):
        looked = [p for p in range(length) if looks_at(length, p, plan, slide)]
        assert kept_positions(length, reach_of(plan, slide)) == looked


@pytest.mark.spec("V-03")
@pytest.mark.parametrize("seed", range(8))
def test_a_slab_never_loses_a_position_still_in_reach(seed: int):
    rng = np.random.default_rng(seed)
    sink, window = int(rng.integers(0, 9)), int(rng.integers(1, 30))
    slide = None if seed % 3 == 0 else int(rng.integers(1, 30))
    reach = Reach(sink=sink, window=window, slide=slide)
    slack = 9
    slots = slot_map(reach, max_len=400, slack=slack)
    assert slots.num_slots <= sink + window + slack
    held = np.full(slots.num_slots, -1, dtype=np.int64)
    length = 0
    while length < 300:
        rows = np.arange(length, length + int(rng.integers(1, slack + 1)), dtype=np.int64)
        for row in rows:
            held[slots.slot(int(row))] = row
        hidden = hidden_slots(held, rows, reach)
        for row, out in zip(rows, hidden, strict=True):
            seen = sorted(held[~out].tolist())
            assert seen == [*kept_positions(int(row), reach), int(row)]
        length += int(rng.integers(1, len(rows) + 1))
