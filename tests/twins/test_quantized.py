"""Checkpoints in MLX's quantised layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kakeya.errors import Refused
from tests.twins.test_verifiers import load
from tests.verifying.checkpoints import full_plan, some_ids, write_checkpoint

GROUP_SIZE = 32
IDS = some_ids(60)


def quantize(dense: Path, packed: Path, dequantized: Path, bits_of: dict[str, int]) -> None:
    """Write `dense` in MLX's layout, and once more with the very values that the layout means."""
    config = json.loads((dense / "config.json").read_text())
    stored: dict[str, mx.array] = dict(mx.load(str(dense / "model.safetensors")))
    meant = dict(stored)
    for name, weight in list(stored.items()):
        if weight.ndim != 2 or weight.shape[1] % GROUP_SIZE:
            continue  # stays dense, as with MLX's own converter
        bits = next((b for part, b in bits_of.items() if part in name), 4)
        parts = mx.quantize(weight, group_size=GROUP_SIZE, bits=bits)
        meant[name] = mx.dequantize(*parts, group_size=GROUP_SIZE, bits=bits)
        stem = name.removesuffix("weight")
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            stored[f"{stem}{part}"] = array
    said = {"group_size": GROUP_SIZE, "bits": 4}
    for folder, weights, more in (
        (packed, stored, {"quantization": said, "quantization_config": said}),
        (dequantized, meant, {}),
    ):
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
        (folder / "config.json").write_text(json.dumps({**config, **more}))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    made = tuple(tmp_path / name for name in ("dense", "packed", "dequantized"))
    for folder in made:
        folder.mkdir()
    return made[0], made[1], made[2]


@pytest.mark.spec("V-15")
@pytest.mark.parametrize("name", ["llama-tied", "qwen3-untied", "gemma4-shared"])
@pytest.mark.parametrize("bits_of", [{}, {"v_proj": 8, "embed": 6}], ids=["alike", "mixed"])
def test_a_packed_checkpoint_says_what_its_values_say(
    places: tuple[Path, Path, Path], name: str, bits_of: dict[str, int]
):
    dense, packed, dequantized = places
    write_checkpoint(dense, name, seed=2)
    quantize(dense, packed, dequantized, bits_of)
    ours, wanted = load("mlx", packed), load("torch", dequantized)
    found = ours.forward(ours.open(full_plan()), IDS, want_logits=True)
    meant = wanted.forward(wanted.open(full_plan()), IDS, want_logits=True)
    assert found.logits is not None
    assert meant.logits is not None
    assert np.abs(found.logits - meant.logits).max() <= 1e-3 * np.abs(meant.logits).max()


@pytest.mark.spec("V-15", "V-05")
def test_a_packed_checkpoint_is_measured_and_smaller(places: tuple[Path, Path, Path]):
    dense, packed, dequantized = places
    write_checkpoint(dense, "qwen3-untied", seed=2)
    quantize(dense, packed, dequantized, {})
    verifier: Any = load("mlx", packed, max_weight_bytes=400_000)
    assert 0.0 <= verifier.margin_bound < float("inf")
    with pytest.raises(Refused, match="the limit is 400000"):
        load("mlx", dequantized, max_weight_bytes=400_000)


@pytest.mark.spec("V-15")
def test_torch_refuses_a_packed_checkpoint_by_name(places: tuple[Path, Path, Path]):
    dense, packed, dequantized = places
    write_checkpoint(dense, "llama-tied", seed=2)
    quantize(dense, packed, dequantized, {})
    with pytest.raises(Refused, match="quantised layout, which the mlx backend") as refused:
        load("torch", packed)
    assert refused.value.status == "UNIMPLEMENTED"


@pytest.mark.spec("V-15", "V-11")
@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("weight", lambda a: a[:, :-1], "is packed as"),
        ("weight", lambda a: a[:-1], "is packed as"),
        ("weight", lambda a: a.astype(mx.float32), "has scales and dtype F32"),
        ("scales", lambda a: a[:, :1], "is packed as"),
        ("scales", lambda a: a.astype(mx.uint8), "has dtype U8"),
        ("biases", lambda a: a[:-1], "biases has shape"),
        ("biases", None, "biases is missing"),
    ],
)
def test_parts_that_do_not_fit_one_another_are_refused(
    places: tuple[Path, Path, Path], name: str, change: Any, why: str
):
    dense, packed, dequantized = places
    write_checkpoint(dense, "llama-tied", seed=2)
    quantize(dense, packed, dequantized, {})
    path = packed / "model.safetensors"
    weights: dict[str, mx.array] = dict(mx.load(str(path)))
    full_name = f"model.layers.1.mlp.up_proj.{name}"
    part = weights.pop(full_name)
    if change is not None:
        weights[full_name] = mx.contiguous(change(part))
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)
    with pytest.raises(Refused) as refused:
        load("mlx", packed)
    assert why in refused.value.why


@pytest.mark.spec("V-15")
def test_another_mode_than_affine_is_refused(places: tuple[Path, Path, Path]):
    dense, packed, dequantized = places
    write_checkpoint(dense, "llama-tied", seed=2)
    quantize(dense, packed, dequantized, {})
    path = packed / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "quantization": {"mode": "mxfp4", "bits": 4}}))
    with pytest.raises(Refused, match="mode is 'mxfp4', supported: affine"):
        load("mlx", packed)
