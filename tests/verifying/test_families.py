"""What holds for every architecture beyond single passes, and what each one refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kakeya.compute.ropes import Rope
from kakeya.errors import Refused
from kakeya.verifying.model_config import read_config
from kakeya.verifying.weight_names import weight_shapes
from tests.verifying.checkpoints import (
    SLIDING_WINDOW,
    filled,
    full_plan,
    load,
    some_ids,
    write_checkpoint,
)
from tests.verifying.conftest import Pair
from tests.verifying.test_model_torch import close

NUM_GREEDY = 64
GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "vocab_size": 100,
    "vocab_size_per_layer_input": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}


@pytest.mark.spec("V-12", "V-02")
@pytest.mark.parametrize("prompt_len", [SLIDING_WINDOW - 4, 5 * SLIDING_WINDOW])
def test_greedy_ids_equal_those_of_transformers(pair: Pair, prompt_len: int):
    ids = some_ids(prompt_len)
    with torch.no_grad():
        theirs = pair.theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, prompt_len, dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NUM_GREEDY,
            eos_token_id=None,
            pad_token_id=0,
        )[0, prompt_len:]
    kv = filled(pair.ours, full_plan(), ids[:-1])
    ours, last = [], ids[-1]
    for _ in range(NUM_GREEDY):
        last = pair.ours.forward(kv, [last]).ids[0]
        ours.append(last)
    assert ours == theirs.tolist()


@pytest.mark.spec("V-08", "V-04")
@pytest.mark.parametrize("prompt_len", [5, 60])
def test_what_is_trimmed_and_written_anew_equals_a_fresh_prefill(pair: Pair, prompt_len: int):
    ids = some_ids(prompt_len + 30)
    kv = filled(pair.ours, full_plan(), ids[:prompt_len])
    for at in range(prompt_len, prompt_len + 20, 4):
        pair.ours.forward(kv, ids[at : at + 2] + some_ids(6, seed=at))
        pair.ours.trim(kv, at + 2)
        pair.ours.forward(kv, ids[at + 2 : at + 4] + some_ids(3, seed=at))
        pair.ours.trim(kv, at + 4)
    fresh = filled(pair.ours, full_plan(), ids[: prompt_len + 20])
    ours = pair.ours.forward(kv, ids[prompt_len + 20 :], want_logits=True)
    wanted = pair.ours.forward(fresh, ids[prompt_len + 20 :], want_logits=True)
    assert ours.ids == wanted.ids
    assert close(ours.logits, wanted.logits)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize(("name", "outer"), [("gemma3", "gemma3"), ("gemma4-shared", "gemma4")])
def test_the_text_part_of_a_model_of_images_is_read_as_the_text_model(
    tmp_path: Path, name: str, outer: str, prefix: str
):
    write_checkpoint(tmp_path, name, seed=3)
    alone, ids = load(tmp_path), some_ids(40)
    wanted = alone.forward(alone.open(full_plan()), ids, want_logits=True)
    config = json.loads((tmp_path / "config.json").read_text())
    nested = {"model_type": outer, "text_config": config, "vision_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    weights = load_file(tmp_path / "model.safetensors")
    moved = {k.replace("model.", prefix, 1): v for k, v in weights.items()}
    moved["model.vision_tower.x"] = torch.zeros(3)
    save_file(moved, tmp_path / "model.safetensors")
    inner = load(tmp_path)
    found = inner.forward(inner.open(full_plan()), ids, want_logits=True)
    assert np.array_equal(found.logits, wanted.logits)


def test_a_config_that_leaves_its_family_s_values_away_gets_them():
    """Published Gemma 3 configs of models of text and images say only this much."""
    bare = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_config({"model_type": "gemma3", "text_config": bare}, {})
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.has_tied_head
    assert config.layer_types[:7] == ("sliding_attention",) * 5 + (
        "full_attention",
        "sliding_attention",
    )
    assert config.ropes == {
        "sliding_attention": Rope(10_000.0),
        "full_attention": Rope(1_000_000.0, factor=8.0),
    }
    assert config.attention_scale == 256**-0.5


def test_layers_without_k_and_v_read_the_last_own_layer_of_their_type():
    config = read_config({**GEMMA4, "num_kv_shared_layers": 2}, {})
    assert [shape.kv_source for shape in config.layers] == [0, 1, 0, 1]
    names = weight_shapes(config)
    assert "model.layers.1.self_attn.k_proj.weight" in names
    assert "model.layers.2.self_attn.k_proj.weight" not in names
    assert "model.layers.3.self_attn.k_norm.weight" not in names


def test_k_and_v_are_held_once_for_all_layers_that_read_them(tmp_path: Path):
    write_checkpoint(tmp_path, "gemma4-shared", seed=3)
    verifier = load(tmp_path)
    kv = verifier.open(full_plan())
    shapes = verifier.config.layers
    sizes = {id(slab): slab.nbytes for slab in kv.slabs}
    assert len(sizes) == 2 < len(shapes)
    assert kv.resident_bytes == verifier.kv_bytes(full_plan()) == sum(sizes.values())


@pytest.mark.spec("V-11")
@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"num_kv_shared_layers": 4}, "INVALID_ARGUMENT", "num_kv_shared_layers is 4"),
        ({"num_kv_shared_layers": 3}, "INVALID_ARGUMENT", "no full_attention layer"),
        ({"enable_moe_block": True}, "UNIMPLEMENTED", "enable_moe_block is True"),
        ({"hidden_activation": "relu"}, "UNIMPLEMENTED", "hidden_activation is 'relu'"),
        ({"attn_logit_softcapping": 50.0}, "UNIMPLEMENTED", "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": 0}, "INVALID_ARGUMENT", "final_logit_softcapping is 0"),
        ({"use_bidirectional_attention": "all"}, "UNIMPLEMENTED", "use_bidirectional_attention"),
        ({"vocab_size_per_layer_input": 90}, "UNIMPLEMENTED", "vocab_size_per_layer_input is 90"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "UNIMPLEMENTED", "one pair a type"),
        ({"per_layer_config": {"0": {"rope": 1}}}, "UNIMPLEMENTED", "per_layer_config sets"),
        ({"per_layer_config": {"0": 3}}, "INVALID_ARGUMENT", "0 is 3, it must be an object"),
        ({"global_head_dim": 33}, "INVALID_ARGUMENT", "head_dim is 33"),
        ({"layer_types": ["sliding_attention"]}, "INVALID_ARGUMENT", "each of the 4 layers"),
    ],
)
def test_a_gemma_4_config_that_cannot_be_computed_is_refused_by_name(
    changes: dict[str, Any], status: str, why: str
):
    with pytest.raises(Refused) as refused:
        read_config({**GEMMA4, **changes}, {})
    assert why in refused.value.why
    assert refused.value.status == status


@pytest.mark.spec("V-11")
def test_more_experts_than_any_model_has_are_refused_before_their_names_are_made():
    raw = {**GEMMA4, "model_type": "qwen3_moe", "hidden_act": "silu", "num_experts": 1024}
    with pytest.raises(Refused, match="num_experts is 1024 in 1000 layers"):
        read_config({**raw, "num_hidden_layers": 1000}, {})
