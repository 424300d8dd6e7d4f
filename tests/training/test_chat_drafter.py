"""A drafter for any chat model's folder: written, gone on with, loaded, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_load_torch import load_drafter, read_verifier_part
from kakeya.errors import Refused
from kakeya.training.batch_torch import forward, load_batch_verifier, logits_of, open_kv
from kakeya.training.chat_drafter_torch import Recipe, aux_layers, train_chat_drafter
from kakeya.training.chat_prompts import Function, Material, make_prompt, topics
from kakeya.training.tokens import train_tokenizer, write_tokenizer
from tests.verifying.checkpoints import write_checkpoint

MATERIAL = Material(
    ["rain", "snow"], [Function("f", "def f():\n    pass\n", "Does it.")], ["Some text."]
)
RECIPE = Recipe(num_layers=1, num_aux=2, block_len=3, head_rows=64)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a tokenizer of fewer ids than its embedding has rows."""
    folder = tmp_path_factory.mktemp("llama")
    write_checkpoint(folder, "llama-tied", seed=3)
    words = {"[unk]": 0, "<s>": 1, "</s>": 2, "<mask>": 3, "rain": 4, "snow": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["</s>", "<mask>"])
    write_tokenizer(tokenizer, folder)
    return folder


class Stopped(Exception):
    """A run that is broken off."""


def train(folder: Path, verifier: Path, *, num_tokens: int, stop_at: int | None = None) -> None:
    def report(step: int, share: float, loss: float) -> None:
        # Shards report a loss of 0.
        if stop_at == step and loss:
            raise Stopped

    train_chat_drafter(
        folder,
        verifier,
        recipe=RECIPE,
        num_tokens=num_tokens,
        num_continued=1,
        seed=1,
        report=report,
        material=MATERIAL,
    )


@pytest.mark.spec("M-09")
def test_a_run_that_goes_on_gives_the_weights_of_an_unbroken_one(
    verifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shrink(monkeypatch)
    step = 8 * 32 * 2  # rows, anchors and drafts of one
    train(tmp_path / "whole", verifier, num_tokens=2 * step)
    monkeypatch.setattr("kakeya.training.run_torch.CHECKPOINT_EVERY_S", -1.0)
    with pytest.raises(Stopped):
        train(tmp_path / "broken", verifier, num_tokens=2 * step, stop_at=1)
    train(tmp_path / "broken", verifier, num_tokens=2 * step)
    whole, broken = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, broken[name]), name
    card = json.loads((tmp_path / "broken/training.json").read_text())
    assert card["trained_positions"] == 2 * step
    assert card["continued_tokens"] > 0
    drafter = load_drafter(
        tmp_path / "broken",
        verifier=read_verifier_part(verifier, dtype="float32", limits=DrafterLimits()),
        dtype="float32",
        limits=DrafterLimits(),
        model_id="d",
        progress=lambda share: None,
    )
    assert drafter.weights.head_ids is not None
    assert len(drafter.weights.head_ids) == 64
    ends = read_verifier_part(verifier, dtype="float32", limits=DrafterLimits()).ends
    probe = torch.randn(1, 96)
    wanted = probe @ ends.head[drafter.weights.head_ids].T
    torch.testing.assert_close(drafter.weights.head(probe), wanted, atol=1e-4, rtol=1e-4)


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kakeya.training.answers_torch.ROWS", 4)
    monkeypatch.setattr("kakeya.training.answers_torch.MAX_ANSWER_LEN", 12)


def test_rows_of_unequal_sequences_are_those_of_each_alone(verifier: Path):
    model = load_batch_verifier(verifier, dtype="float32")
    ids = torch.randint(4, 200, (2, 9), generator=torch.Generator().manual_seed(1))
    lens = torch.tensor([9, 5])
    kv = open_kv(model, 2, 12)
    forward(model, kv, ids, torch.zeros(2, dtype=torch.int64))
    behind, _ = forward(model, kv, torch.tensor([[7], [7]]), lens)
    alone, _ = forward(
        model,
        open_kv(model, 1, 12),
        torch.cat((ids[1:, :5], torch.tensor([[7]])), 1),
        torch.zeros(1, dtype=torch.int64),
    )
    torch.testing.assert_close(
        logits_of(model, behind[1, 0]), logits_of(model, alone[0, -1]), atol=1e-4, rtol=1e-4
    )


def test_a_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path):
    write_checkpoint(tmp_path / "model", "llama-tied", seed=3)
    with pytest.raises(Refused, match=r"holds no tokenizer\.json"):
        train(tmp_path / "out", tmp_path / "model", num_tokens=1)


def test_a_tokenizer_of_more_ids_than_the_model_has_rows_is_refused(tmp_path: Path):
    write_checkpoint(tmp_path / "model", "llama-tied", seed=3)
    write_tokenizer(train_tokenizer(["rain"]), tmp_path / "model")
    with pytest.raises(Refused, match="the tokenizer has 2.. ids, the model's vocab_size is 211"):
        train(tmp_path / "out", tmp_path / "model", num_tokens=1)


def test_topics_are_on_one_side_of_the_split_and_prompts_depend_on_their_number():
    assert not set(topics(held_out=True)) & set(topics(held_out=False))
    made = [make_prompt(MATERIAL, seed=1, number=i) for i in range(40)]
    assert made == [make_prompt(MATERIAL, seed=1, number=i) for i in range(40)]
    assert len(set(made)) > 20


def test_aux_layers_are_spread_over_those_there_are():
    assert aux_layers(30, 5) == [1, 8, 15, 21, 28]
    assert aux_layers(1, 5) == [0]
