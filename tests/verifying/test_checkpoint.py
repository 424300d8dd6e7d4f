from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kakeya.compute.ropes import ROPE_TYPES, Llama3Scaling, Rope
from kakeya.compute.weight_files import WEIGHT_DTYPES
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused
from kakeya.verifying.checkpoint import read_checkpoint
from kakeya.verifying.model_config import LAYER_TYPES, MODEL_TYPES, read_config
from tests.spec_tables import table
from tests.verifying.checkpoints import full_plan, load, some_ids, write_checkpoint
from tests.verifying.conftest import Pair

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 16}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, "qwen3-untied", seed=1)
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    weights = {**load_file(path), **{k.replace("__", "."): v for k, v in changes.items()}}
    save_file({k: v for k, v in weights.items() if v is not None}, path)


def refusal(folder: Path, **limits: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        load(folder, **limits)
    assert str(folder) not in refused.value.why
    return refused.value


@pytest.mark.spec("V-11")
def test_what_is_supported_is_what_the_spec_says():
    rows = dict(table("verifying.md", "field", "supported"))
    assert tuple(rows["model_type"].split(", ")) == MODEL_TYPES
    assert tuple(rows["rope_type"].split(", ")) == ROPE_TYPES
    assert tuple(rows["layer_types"].split(", ")) == LAYER_TYPES
    assert tuple(rows["weight dtype"].split(", ")) == WEIGHT_DTYPES


@pytest.mark.spec("V-11")
@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"model_type": "mixtral"}, "UNIMPLEMENTED", "model_type is 'mixtral'"),
        ({"model_type": None}, "UNIMPLEMENTED", "model_type is None"),
        ({"hidden_act": "gelu"}, "UNIMPLEMENTED", "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "UNIMPLEMENTED", "quantization_config is {'bits'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "UNIMPLEMENTED", "rope_type is 'yarn'"),
        ({"rope_parameters": [1]}, "INVALID_ARGUMENT", "rope_parameters is [1]"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "INVALID_ARGUMENT", "factor is None"),
        ({"partial_rotary_factor": 0.5}, "UNIMPLEMENTED", "partial_rotary_factor is 0.5"),
        ({"layer_types": ["full_attention"]}, "INVALID_ARGUMENT", "each of the 4 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "UNIMPLEMENTED", "'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 4}, "INVALID_ARGUMENT", "sliding_window"),
        ({"hidden_size": 0}, "INVALID_ARGUMENT", "hidden_size is 0"),
        ({"hidden_size": -64}, "INVALID_ARGUMENT", "hidden_size is -64"),
        ({"hidden_size": 1 << 60}, "INVALID_ARGUMENT", "hidden_size is 1152921504606846976"),
        ({"hidden_size": "64"}, "INVALID_ARGUMENT", "hidden_size is '64'"),
        ({"hidden_size": True}, "INVALID_ARGUMENT", "hidden_size is True"),
        ({"num_key_value_heads": 3}, "INVALID_ARGUMENT", "num_key_value_heads is 3"),
        ({"num_key_value_heads": 8}, "INVALID_ARGUMENT", "num_key_value_heads is 8"),
        ({"head_dim": 33}, "INVALID_ARGUMENT", "head_dim is 33"),
        ({"rms_norm_eps": float("nan")}, "INVALID_ARGUMENT", "rms_norm_eps is nan"),
        ({"tie_word_embeddings": "yes"}, "INVALID_ARGUMENT", "tie_word_embeddings is 'yes'"),
        ({"attention_bias": False, "hidden_size": 128}, "INVALID_ARGUMENT", "has shape [211, 64]"),
        (
            {"num_hidden_layers": 5, "layer_types": None},
            "INVALID_ARGUMENT",
            "model.layers.4.self_attn.q_proj.weight",
        ),
        ({"vocab_size": 210}, "INVALID_ARGUMENT", "embed_tokens.weight has shape [211, 64]"),
        (
            {"num_hidden_layers": 1000, "layer_types": None, "hidden_size": 1 << 17},
            "RESOURCE_EXHAUSTED",
            "parameters",
        ),
    ],
)
def test_a_config_that_lies_or_asks_too_much_is_refused_by_name(
    folder: Path, changes: dict[str, Any], status: str, why: str
):
    change_config(folder, **changes)
    refused = refusal(folder)
    assert why in refused.why
    assert refused.status == status


@pytest.mark.spec("V-11")
def test_an_end_of_text_id_beyond_the_vocabulary_is_refused(folder: Path):
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 211]}')
    assert "eos_token_id is 211" in refusal(folder).why


@pytest.mark.spec("V-11")
@pytest.mark.parametrize(
    ("name", "weight", "why"),
    [
        ("lm_head.weight", None, "lm_head.weight is missing"),
        ("model.norm.weight", torch.ones(65), "model.norm.weight has shape [65]"),
        ("model.norm.weight", torch.ones(1, 64), "has shape [1, 64], config.json says [64]"),
        ("model.norm.weight", torch.ones(64, dtype=torch.int8), "has dtype I8"),
        ("model.norm.weight", torch.ones(64).to(torch.float8_e4m3fn), "has dtype F8_E4M3"),
        ("model.layers.0.self_attn.q_norm.weight", None, "q_norm.weight is missing"),
        ("model.layers.3.self_attn.o_proj.bias", None, "o_proj.bias is missing"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(
    folder: Path, name: str, weight: torch.Tensor | None, why: str
):
    change_weights(folder, **{name: weight})
    assert why in refusal(folder).why


@pytest.mark.spec("V-11")
@pytest.mark.parametrize("kept_bytes", [0, 4, 100, 5000, -1])
def test_a_cut_file_is_refused_as_lost(folder: Path, kept_bytes: int):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert refusal(folder).status == "DATA_LOSS"


@pytest.mark.spec("V-11")
@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("config.json", "{", "DATA_LOSS"),
        ("config.json", "[" * 100_000, "DATA_LOSS"),
        ("config.json", "[]", "INVALID_ARGUMENT"),
        ("config.json", "\udc80", "DATA_LOSS"),
        ("generation_config.json", "{", "DATA_LOSS"),
        ("model.safetensors.index.json", "{}", "INVALID_ARGUMENT"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "x.bin"}}', "INVALID_ARGUMENT"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../model.safetensors"}}',
            "INVALID_ARGUMENT",
        ),
        ("model.safetensors.index.json", '{"weight_map": {"a": "b.safetensors"}}', "NOT_FOUND"),
    ],
)
def test_files_that_are_not_what_they_should_be_are_refused(
    folder: Path, name: str, text: str, status: str
):
    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
    assert refusal(folder).status == status


@pytest.mark.spec("V-11")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_refused_as_not_found(folder: Path, name: str):
    (folder / name).unlink()
    refused = refusal(folder)
    assert refused.status == "NOT_FOUND"
    assert name in refused.why


@pytest.mark.spec("V-10")
def test_weights_beyond_the_memory_limit_are_refused(folder: Path):
    refused = refusal(folder, max_weight_bytes=300_000)
    assert refused.status == "RESOURCE_EXHAUSTED"
    assert "the limit is 300000" in refused.why


def test_a_sharded_folder_gives_the_same_rows_as_a_single_file(sliding: Pair, tmp_path: Path):
    sliding.theirs.save_pretrained(tmp_path, max_shard_size="200KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    sharded, ids = load(tmp_path), some_ids(20)
    ours = sliding.ours.forward(sliding.ours.open(full_plan()), ids, want_logits=True)
    theirs = sharded.forward(sharded.open(full_plan()), ids, want_logits=True)
    assert np.array_equal(ours.logits, theirs.logits)


def test_a_folder_stored_in_half_precision_is_read_in_float32(sliding: Pair, tmp_path: Path):
    write_checkpoint(tmp_path, "qwen3-tied-sliding", seed=5)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({k: v.to(torch.float16) for k, v in weights.items()}, tmp_path / "model.safetensors")
    verifier, ids = load(tmp_path), some_ids(20)
    ours = sliding.ours.forward(sliding.ours.open(full_plan()), ids, want_logits=True)
    half = verifier.forward(verifier.open(full_plan()), ids, want_logits=True)
    assert 0 < np.abs(ours.logits - half.logits).max() < 0.05 * np.abs(ours.logits).max()


def test_progress_grows_to_1(folder: Path):
    from kakeya.verifying.load import load_verifier

    seen: list[float] = []
    load_verifier(
        folder, dtype="float32", limits=VerifyingLimits(), model_id="m", progress=seen.append
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_rope_is_read_in_the_old_layout_and_in_the_new():
    old = read_config({**LLAMA, "rope_theta": 500_000.0}, {})
    new = read_config({**LLAMA, "rope_parameters": {"rope_theta": 500_000.0}}, {})
    assert old == new
    assert old.ropes == {"full_attention": Rope(500_000.0)}
    llama3 = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = read_config({**LLAMA, "rope_theta": 500_000.0, "rope_scaling": llama3}, {})
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert scaled.ropes == {"full_attention": Rope(500_000.0, llama3=scaling)}


def test_end_of_text_ids_come_from_the_generation_config_first():
    assert read_config({**LLAMA, "eos_token_id": 2}, {}).eos_ids == (2,)
    assert read_config({**LLAMA, "eos_token_id": 2}, {"eos_token_id": [3, 4]}).eos_ids == (3, 4)
    assert read_config(LLAMA, {}).eos_ids == ()


def test_sliding_layers_are_read_from_the_list_or_from_max_window_layers():
    slides = {"use_sliding_window": True, "sliding_window": 8}
    assert read_config({**QWEN3, **slides, "max_window_layers": 1}, {}).layer_types == (
        "full_attention",
        "sliding_attention",
    )
    assert read_config({**QWEN3, "sliding_window": 8}, {}).sliding_window is None
    assert read_config({**LLAMA, "sliding_window": 8}, {}).sliding_window is None


def test_reading_a_checkpoint_loads_no_weight(folder: Path):
    found = read_checkpoint(folder, VerifyingLimits())
    assert set(found.dtypes.values()) == {"F32"}
    assert found.config.normed_heads == "qk"
