"""The tiny pair on two real nodes keeps the promise; `python -m tests.live.promise` runs more."""

from __future__ import annotations

import pytest

from kakeya.cli.bench_prompts import held_out
from tests.live.promise import KV_MODES, compare, tiny_pair


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_held_out_prompts_give_the_ids_of_plain_decoding(dtype, tmp_path):
    with tiny_pair(tmp_path, dtype) as pair:
        for kv_mode in KV_MODES:
            counts = compare(pair, held_out(2, seed=3), kv_mode=kv_mode, max_tokens=48)
            for name, count in counts.items():
                assert count.num_equal == count.num_texts == 2, (kv_mode, name)
            assert "tiny" in counts["tiny"].drafters  # something was at stake
            assert counts["tiny"].num_ids > counts["tiny"].num_rounds


def test_prompts_are_the_same_for_a_seed_and_of_the_length_asked_for():
    assert held_out(3, seed=5) == held_out(3, seed=5)
    assert held_out(3, seed=5) != held_out(3, seed=6)
    assert {len(prompt) for prompt in held_out(3, seed=5)} == {700}
