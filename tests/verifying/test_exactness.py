from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kakeya.compute.matmul_torch import (
    LeftMatrix,
    PackedMatrix,
    keeps_rows_apart,
    prepare,
)
from kakeya.verifying.exactness import GUARD_BOUNDS, Exactness, measure_exactness
from tests.spec_tables import table
from tests.verifying.checkpoints import full_plan, load, write_checkpoint
from tests.verifying.conftest import Pair


@pytest.mark.spec("V-05")
def test_the_bounds_are_those_of_the_spec():
    rows = table("verifying.md", "dtype", "margin_bound")
    assert {dtype: float(bound) for dtype, bound in rows} == GUARD_BOUNDS


@pytest.mark.spec("V-05")
def test_a_verifier_whose_blocks_differ_gets_a_bound_beyond_what_was_seen(
    sliding: Pair,
):
    verifier = load(sliding.folder)
    honest = verifier.forward

    def noisy(kv, ids, **asked):
        rows = honest(kv, ids, **asked)
        if len(ids) > 1 and rows.logits is not None:
            rows.logits[...] += np.float32(0.002)
        return rows

    verifier.forward = noisy  # type: ignore[method-assign]
    found = measure_exactness(verifier)
    assert not found.is_exact
    assert found.margin_bound("float32") >= 16 * 0.0019


@pytest.mark.parametrize("seen", [float("nan"), 0.0])
def test_without_a_usable_measure_the_bound_is_the_spec_s(seen: float):
    assert Exactness(is_exact=False, max_difference=seen).margin_bound("float32") == 1e-3


@pytest.mark.spec("V-05")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 32), (128, 384), (960, 576), (576, 1536), (3072, 576)])
def test_a_row_of_a_product_does_not_depend_on_the_rows_beside_it(
    shape: tuple[int, int], dtype: torch.dtype
):
    if dtype == torch.float32 and not keeps_rows_apart():
        pytest.skip("products of this CPU depend on the rows beside them: the margin guard is on")
    torch.manual_seed(2)
    x = torch.randn(17, shape[1]).to(dtype)
    matrix = prepare(torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype))
    alone = torch.cat([matrix(x[i : i + 1]) for i in range(17)])
    for num_rows in range(2, 18):
        assert torch.equal(matrix(x[:num_rows]), alone[:num_rows]), num_rows


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_both_forms_of_a_product_agree(num_rows: int):
    torch.manual_seed(4)
    weight, bias, x = torch.randn(96, 48), torch.randn(96), torch.randn(num_rows, 48)
    wanted = torch.nn.functional.linear(x, weight, bias)
    assert torch.allclose(LeftMatrix(weight, bias)(x), wanted, atol=1e-5)
    prepared = prepare(weight, bias)
    assert isinstance(prepared, PackedMatrix) == torch._C.has_mkl
    assert torch.allclose(prepared(x), wanted, atol=1e-5)


@pytest.mark.spec("V-06")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_equal_head_rows_tie_to_the_lowest_id_in_steps_and_blocks(tmp_path: Path, dtype: str):
    write_checkpoint(tmp_path, "qwen3-untied", seed=7)
    weights = load_file(tmp_path / "model.safetensors")
    head = weights["lm_head.weight"]
    head[150:] = head[:61].clone()  # ids 0…60 and 150…210 tie exactly
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    verifier = load(tmp_path, dtype=dtype)
    ids = list(range(61))
    block = verifier.forward(verifier.open(full_plan()), ids)
    kv = verifier.open(full_plan())
    steps = [verifier.forward(kv, [each]) for each in ids]
    assert block.ids == tuple(row.ids[0] for row in steps)
    assert max(block.ids) < 150
    tied = [i for i, m in zip(block.ids, block.margins, strict=True) if m == 0.0]
    assert len(tied) > 5


@pytest.mark.spec("V-07")
def test_weights_that_are_not_finite_are_reported_and_the_verifier_lives(tmp_path: Path):
    write_checkpoint(tmp_path, "llama-tied", seed=7)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][9, 3] = float("nan")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    verifier = load(tmp_path)
    assert verifier.forward(verifier.open(full_plan()), [1, 9, 1]).has_nan
    # The head is tied: id 9's logit is never finite, and no pass may be believed.
    assert verifier.forward(verifier.open(full_plan()), [1]).has_nan
    assert verifier.margin_bound > 0
