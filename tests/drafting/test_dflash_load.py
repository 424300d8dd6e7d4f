from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_load_torch import load_drafter, read_verifier_part
from kakeya.errors import Refused
from tests.drafting.dflash_checkpoints import (
    extended,
    load,
    some_aux,
    verifier_ends,
    verifier_part,
    write_drafter,
)
from tests.drafting.dflash_shapes import CONFIG, HIDDEN_SIZE, NUM_VERIFIER_LAYERS, VOCAB_SIZE

AUX = some_aux(30, 3, seed=4)
LIMITS = DrafterLimits(num_threads=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_drafter(tmp_path, "full")
    return tmp_path


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    path = folder / "model.safetensors"
    weights = {**load_file(path), **changes}
    save_file({k: v for k, v in weights.items() if v is not None}, path)


def refusal(folder: Path, **limits: Any) -> Refused:
    with pytest.raises(Refused) as refused:
        load(folder, verifier_ends(), **limits)
    assert str(folder) not in refused.value.why
    assert "\n" not in refused.value.why
    return refused.value


def drafts(folder: Path, ends: Any = None, *, dtype: str = "float32") -> list[tuple[int, ...]]:
    drafter = load(folder, ends, dtype=dtype)
    context = extended(drafter, None, 0, AUX)
    return [drafter.draft(context, len(AUX), bonus, 9).ids for bonus in range(8)]


@pytest.mark.spec("M-08")
@pytest.mark.parametrize(
    ("name", "weight", "status", "why"),
    [
        ("fc.weight", None, "INVALID_ARGUMENT", "the weight fc.weight is missing"),
        ("hidden_norm.weight", None, "INVALID_ARGUMENT", "hidden_norm.weight is missing"),
        ("layers.2.self_attn.k_norm.weight", None, "INVALID_ARGUMENT", "k_norm.weight is missing"),
        ("fc.weight", torch.ones(48, 96), "INVALID_ARGUMENT", "has shape [48, 96], config.json"),
        ("norm.weight", torch.ones(48, dtype=torch.int8), "UNIMPLEMENTED", "has dtype I8"),
        (
            "layers.0.self_attn.sinks",
            torch.ones(6),
            "UNIMPLEMENTED",
            "the weight 'layers.0.self_attn.sinks' is none that this drafter computes with",
        ),
        (
            "layers.0.self_attn.q_proj.bias",
            torch.ones(96),
            "UNIMPLEMENTED",
            "q_proj.bias' is none that this drafter computes with",
        ),
        ("layers.3.mlp.up_proj.weight", torch.ones(2), "UNIMPLEMENTED", "layers.3.mlp.up_proj"),
        ("candidate_selector.successor_codebook", torch.ones(2), "UNIMPLEMENTED", "_codebook'"),
        ("d2t", torch.zeros(4, dtype=torch.int64), "UNIMPLEMENTED", "the weight 'd2t'"),
        ("lm_head.weight", torch.ones(40, 48), "INVALID_ARGUMENT", "lm_head.weight has shape [40"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(
    folder: Path, name: str, weight: Tensor | None, status: str, why: str
):
    change_weights(folder, {name: weight})
    refused = refusal(folder)
    assert why in refused.why
    assert refused.status == status


@pytest.mark.spec("M-08")
@pytest.mark.parametrize("kept_bytes", [0, 4, 100, 5000, -1])
def test_a_cut_file_is_refused_as_lost(folder: Path, kept_bytes: int):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    assert refusal(folder).status == "DATA_LOSS"


@pytest.mark.spec("M-08")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_refused_as_not_found(folder: Path, name: str):
    (folder / name).unlink()
    refused = refusal(folder)
    assert refused.status == "NOT_FOUND"
    assert name in refused.why


@pytest.mark.spec("M-08")
def test_a_pickle_is_not_looked_at(folder: Path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "neither model.safetensors nor" in refusal(folder).why


def test_weights_beyond_the_memory_limit_are_refused_with_their_size(folder: Path):
    weights = load_file(folder / "model.safetensors")
    own = sum(each.numel() for name, each in weights.items())
    kv = sum(e.numel() for name, e in weights.items() if "k_proj" in name or "v_proj" in name)
    num_bytes = 4 * (own + kv + 2 * VOCAB_SIZE * HIDDEN_SIZE)
    load(folder, verifier_ends(), max_weight_bytes=num_bytes)
    refused = refusal(folder, max_weight_bytes=num_bytes - 1)
    assert refused.status == "RESOURCE_EXHAUSTED"
    assert f"take {num_bytes} bytes in float32" in refused.why


def test_a_dtype_we_do_not_compute_in_is_refused(folder: Path):
    with pytest.raises(Refused, match="dtype is 'float16', supported are float32, bfloat16"):
        load(folder, verifier_ends(), dtype="float16")


@pytest.mark.spec("M-10")
def test_a_drafter_is_not_loaded_beside_another_verifier(folder: Path):
    with pytest.raises(Refused, match="the verifier's vocab_size is 160") as refused:
        load_drafter(
            folder,
            verifier=verifier_part(verifier_ends(), vocab_size=160),
            dtype="float32",
            limits=LIMITS,
            model_id="m",
            progress=lambda share: None,
        )
    assert refused.value.status == "FAILED_PRECONDITION"


def test_a_sharded_folder_drafts_as_a_single_file_does(folder: Path, tmp_path: Path):
    wanted = drafts(folder, verifier_ends())
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    placed = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(names)}
    for shard in set(placed.values()):
        save_file({n: weights[n] for n in names if placed[n] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "model.safetensors").unlink()
    assert drafts(folder, verifier_ends()) == wanted


@pytest.mark.parametrize("name", ["full", "second"])
def test_what_the_reference_saves_itself_is_read(tmp_path: Path, name: str):
    theirs = write_drafter(tmp_path / "published", name)
    theirs.save_pretrained(tmp_path / "saved")
    ends = verifier_ends()
    assert drafts(tmp_path / "saved", ends) == drafts(tmp_path / "published", ends)


def test_weights_stored_in_half_precision_are_read_in_float32(folder: Path):
    path = folder / "model.safetensors"
    halves = {k: v.to(torch.bfloat16) for k, v in load_file(path).items()}
    save_file(halves, path)
    stored_half = drafts(folder, verifier_ends())
    save_file({k: v.to(torch.float32) for k, v in halves.items()}, path)
    assert drafts(folder, verifier_ends()) == stored_half


def test_progress_grows_to_1(folder: Path):
    seen: list[float] = []
    load_drafter(
        folder,
        verifier=verifier_part(verifier_ends()),
        dtype="float32",
        limits=LIMITS,
        model_id="m",
        progress=seen.append,
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_drafter_with_embedding_and_head_of_its_own_needs_no_verifier(folder: Path):
    ends = verifier_ends()
    wanted = drafts(folder, ends)
    with pytest.raises(Refused, match="it needs the verifier's") as refused:
        drafts(folder)
    assert refused.value.status == "FAILED_PRECONDITION"
    change_weights(folder, {"embed_tokens.weight": ends.embedding, "lm_head.weight": ends.head})
    assert drafts(folder) == wanted
    # And its own go before the verifier's.
    assert drafts(folder, verifier_ends(seed=99)) == wanted


@pytest.mark.spec("M-09")
def test_a_vocabulary_of_its_own_drafts_the_verifiers_ids(folder: Path):
    ends = verifier_ends()
    wanted = drafts(folder, ends)
    # Its rows are those that win with the whole head, and some more, in no order.
    chosen = torch.tensor(sorted({i for ids in wanted for i in ids} | {0, 77, 149}))
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(3))]
    change_config(folder, draft_vocab_size=len(chosen))
    own = {"lm_head.weight": ends.head[chosen], "d2t": chosen - torch.arange(len(chosen))}
    change_weights(folder, {**own, "t2d": torch.ones(VOCAB_SIZE, dtype=torch.bool)})
    assert drafts(folder, ends) == wanted
    assert load(folder, ends).shape.vocab_size == VOCAB_SIZE


@pytest.mark.spec("M-09")
@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("lm_head.weight", "the weight lm_head.weight is missing"),
        ("d2t", "draft_vocab_size is 40, but the weight d2t is missing"),
    ],
)
def test_a_vocabulary_of_its_own_without_head_or_map_is_refused(
    folder: Path, missing: str, why: str
):
    change_config(folder, draft_vocab_size=40)
    own = {"lm_head.weight": torch.ones(40, 48), "d2t": torch.arange(40)}
    change_weights(folder, {**own, missing: None})
    assert refusal(folder).why == why


@pytest.mark.spec("M-09")
@pytest.mark.parametrize("shift", [-1, VOCAB_SIZE - 39])
def test_a_map_to_ids_that_are_none_is_refused(folder: Path, shift: int):
    change_config(folder, draft_vocab_size=40)
    d2t = torch.full((40,), shift)
    change_weights(folder, {"lm_head.weight": torch.ones(40, 48), "d2t": d2t})
    assert f"ids from {shift} to {shift + 39}, vocab_size is 151" in refusal(folder).why


def write_verifier(folder: Path, *, is_tied: bool) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=64,
        num_hidden_layers=NUM_VERIFIER_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=is_tied,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("is_tied", [True, False])
def test_of_a_verifiers_folder_only_shape_and_ends_are_read(tmp_path: Path, is_tied: bool):
    model = write_verifier(tmp_path, is_tied=is_tied)
    part = read_verifier_part(tmp_path, dtype="float32", limits=LIMITS)
    assert part.shape == verifier_part(verifier_ends()).shape
    assert torch.equal(part.ends.embedding, model.get_input_embeddings().weight)
    assert torch.equal(part.ends.head, model.get_output_embeddings().weight)
    assert torch.equal(part.ends.head, part.ends.embedding) == is_tied


def test_the_ends_of_a_model_that_also_takes_images_are_found(tmp_path: Path):
    model = write_verifier(tmp_path, is_tied=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}))
    kept = {
        "model.language_model.embed_tokens.weight": model.get_input_embeddings().weight.detach(),
        "lm_head.weight": model.get_output_embeddings().weight.detach(),
    }
    save_file(kept, tmp_path / "model.safetensors")
    part = read_verifier_part(tmp_path, dtype="bfloat16", limits=LIMITS)
    assert part.shape.num_layers == NUM_VERIFIER_LAYERS
    assert torch.equal(part.ends.head, kept["lm_head.weight"].to(torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "lm_head.weight",
            "is false, but the weight lm_head.weight is missing",
        ),
        ("model.embed_tokens.weight", "the weight model.embed_tokens.weight is missing"),
    ],
)
def test_a_verifier_without_its_ends_is_refused(tmp_path: Path, name: str, why: str):
    write_verifier(tmp_path, is_tied=False)
    change_weights(tmp_path, {name: None})
    with pytest.raises(Refused) as refused:
        read_verifier_part(tmp_path, dtype="float32", limits=LIMITS)
    assert why in refused.value.why


def test_reading_a_drafter_needs_no_more_than_what_is_published(folder: Path):
    assert set(CONFIG) == set(json.loads((folder / "config.json").read_text()))
    assert not any("embed" in n or "lm_head" in n for n in load_file(folder / "model.safetensors"))
