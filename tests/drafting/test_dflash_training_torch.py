from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kakeya.drafting.dflash_training_torch import Blocks, block_logits, trained
from tests.drafting.dflash_checkpoints import extended, load, some_aux, write_pair
from tests.drafting.dflash_shapes import DRAFTERS, VOCAB_SIZE

LENGTH = 60
ANCHORS = torch.tensor([[1, 9, 30, 59], [2, 13, 14, 44]])


def tensors_of(folder: Path, *, requires_grad: bool = False) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    return {name: each.requires_grad_(requires_grad) for name, each in found.items()}


@pytest.mark.spec("M-11")
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("block_len", [2, 7])
def test_blocks_trained_at_once_are_the_blocks_drafted(tmp_path, name, block_len):
    pair = write_pair(tmp_path, name)
    drafter = pair.ours
    config = drafter.config
    aux = [some_aux(LENGTH, len(config.aux_layers), seed=each) for each in (1, 2)]
    bonus_ids = torch.tensor([[3, 50, 7, 0], [VOCAB_SIZE - 1, 4, 4, 19]])
    weights = trained(config, tensors_of(tmp_path), pair.ends)
    blocks = Blocks(ANCHORS, bonus_ids, block_len)
    logits = block_logits(config, weights, torch.stack(aux), blocks)
    assert logits.shape == (2, 4, block_len - 1, VOCAB_SIZE)
    if config.selector is not None:
        return  # it draws its drafts from these logits by a path, not by argmax
    for row, anchors in enumerate(ANCHORS.tolist()):
        for at, anchor in enumerate(anchors):
            context = extended(drafter, None, 0, aux[row][:anchor])
            drafted = drafter.draft(context, anchor, int(bonus_ids[row, at]), block_len - 1)
            assert drafted.ids == tuple(logits[row, at].argmax(-1).tolist()), (row, anchor)


@pytest.mark.parametrize("name", ["sliding-causal", "second"])
def test_every_weight_but_the_selectors_gets_a_gradient(tmp_path, name):
    pair = write_pair(tmp_path, name)
    config = pair.ours.config
    tensors = tensors_of(tmp_path, requires_grad=True)
    aux = torch.stack([some_aux(LENGTH, len(config.aux_layers), seed=each) for each in (1, 2)])
    blocks = Blocks(ANCHORS, torch.full_like(ANCHORS, 5), 8)
    logits = block_logits(config, trained(config, tensors, pair.ends), aux, blocks)
    logits.log_softmax(-1)[..., 3].mean().backward()
    for each, tensor in tensors.items():
        if "selector" not in each:
            assert tensor.grad is not None, each
            assert float(tensor.grad.abs().max()) > 0, each


def test_what_was_trained_is_drafted_with_when_it_is_loaded_again(tmp_path):
    pair = write_pair(tmp_path, "full")
    config = pair.ours.config
    tensors = tensors_of(tmp_path, requires_grad=True)
    aux = some_aux(LENGTH, len(config.aux_layers), seed=1)[None]
    blocks = Blocks(torch.tensor([[20]]), torch.tensor([[5]]), 5)
    wanted = torch.tensor([11, 12, 13, 14])
    optimizer = torch.optim.AdamW(tensors.values(), lr=0.02)
    for _ in range(40):
        logits = block_logits(config, trained(config, tensors, pair.ends), aux, blocks)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits[0, 0], wanted).backward()
        optimizer.step()
    save_file(
        {name: each.detach() for name, each in tensors.items()}, tmp_path / "model.safetensors"
    )
    drafter = load(tmp_path, pair.ends)
    context = extended(drafter, None, 0, aux[0, :20])
    assert drafter.draft(context, 20, 5, 4).ids == tuple(wanted.tolist())
