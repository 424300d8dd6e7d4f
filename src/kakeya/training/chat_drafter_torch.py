"""Train a DFlash drafter for any chat model's folder, on what the model itself answers.

The plain published layout; of the verifier's head the rows that its answers use most are taken,
named by their ids (d2t), so that the folder carries no head of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kakeya.drafting.dflash_checkpoint import ID_MAP, weight_shapes
from kakeya.drafting.dflash_config import DflashConfig, read_dflash_config
from kakeya.drafting.dflash_training_torch import Blocks, block_logits, trained
from kakeya.drafting.dflash_weights_torch import VerifierEnds
from kakeya.errors import demand
from kakeya.training.answers_torch import Answers, Report, frequent_ids, written_answers
from kakeya.training.batch_torch import (
    BatchVerifier,
    forward,
    load_batch_verifier,
    logits_of,
    open_kv,
)
from kakeya.training.chat_prompts import Material, read_material
from kakeya.training.decoder_torch import initial
from kakeya.training.muon_torch import Optimizer, Rates
from kakeya.training.run_torch import Budget, Step, run, write_checkpoint
from kakeya.verifying.tokenizer import Tokenizer, load_tokenizer

ROWS_PER_STEP, ANCHORS_PER_ROW, READ_ROWS = 8, 32, 8
TOP_K, SOFT_SHARE, FADE = 8, 0.5, 4.0
# Logits of a fresh drafter are about this far apart: a start that is sure of nothing.
FIRST_SPREAD = 0.5
RATES = Rates(matrix=0.0, other=1e-3)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the drafter shall be.  block_len counts the bonus; head_rows: 0 takes all of them.

    max_aux_bytes: what is kept in memory of the verifier's hidden states; conversations beyond
    it are not learned from.
    """

    num_layers: int = 1
    num_aux: int = 5
    block_len: int = 4
    head_rows: int = 8192
    max_aux_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """One shard as the drafter learns it: the aux, and the likeliest ids with their chances.

    aux: [rows, T, num_aux * hidden_size], bfloat16.  top_ids, top: [rows, T, TOP_K].
    """

    answers: Answers
    aux: Tensor
    top_ids: Tensor
    top: Tensor


def train_chat_drafter(
    folder: Path,
    verifier_folder: Path,
    *,
    recipe: Recipe,
    num_tokens: int,
    num_continued: int,
    seed: int,
    report: Report,
    material: Material | None = None,
) -> None:
    """Train (or go on training) and write the drafter's folder, weights in bfloat16.

    num_tokens: drafted positions in all.  num_continued: ids the verifier answers to learn from.
    Raises Refused for a folder that is no verifier's, or has no tokenizer or chat template.
    """
    tokenizer = load_tokenizer(verifier_folder)
    demand(tokenizer.template is not None, "FAILED_PRECONDITION", "the model has no chat template")
    verifier = load_batch_verifier(verifier_folder, dtype="bfloat16")
    demand(
        tokenizer.vocab_size <= verifier.config.vocab_size,
        "FAILED_PRECONDITION",
        f"the tokenizer has {tokenizer.vocab_size} ids, "
        f"the model's vocab_size is {verifier.config.vocab_size}",
    )
    shards = written_answers(
        folder,
        verifier,
        tokenizer,
        material or read_material(held_out=False),
        num_ids=num_continued,
        seed=seed,
        report=report,
    )
    raw = drafter_json(verifier, tokenizer, recipe)
    head_ids = frequent_ids(shards, int(str(raw["draft_vocab_size"])), verifier.config.vocab_size)
    config = replace(read_dflash_config(raw), draft_vocab_size=None, cuts_verifier_head=False)
    reads = _read_all(verifier, config, shards, recipe.max_aux_bytes)
    ends = VerifierEnds(verifier.ends.embedding, verifier.ends.head[head_ids])
    row_of = torch.full((verifier.config.vocab_size,), -1).scatter_(
        0, head_ids, torch.arange(len(head_ids))
    )
    params = initial(weight_shapes(config, ()), torch.Generator().manual_seed(seed))
    with torch.no_grad():
        params["norm.weight"].fill_(FIRST_SPREAD / float(ends.head.norm(dim=1).mean()))

    def take(step: int, share: float) -> Step:
        del share
        rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
        loss = chat_loss(config, params, ends, reads, row_of, rng)
        return Step(loss, ROWS_PER_STEP * ANCHORS_PER_ROW * (config.block_len - 1))

    run(
        Optimizer(params, frozenset()),
        Budget(num_tokens, RATES),
        take=take,
        checkpoint=folder / "training.safetensors",
        now=time.monotonic,
        report=report,
    )
    card = {
        "prompts": "put together by rule; Python's standard library (PSF licence), training side",
        "continued_tokens": sum(each.num_answered for each in shards),
        "conversations": sum(len(each.aux) for each in reads),
        "trained_positions": num_tokens,
        "seed": seed,
    }
    offsets = head_ids - torch.arange(len(head_ids))
    write_checkpoint(folder, raw, {**params, ID_MAP: offsets}, card)


def drafter_json(
    verifier: BatchVerifier, tokenizer: Tokenizer, recipe: Recipe
) -> dict[str, object]:
    """config.json of the drafter: the published layout, shaped by the verifier's geometry."""
    c = verifier.config
    head_rows = min(recipe.head_rows or c.vocab_size, c.vocab_size)
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": c.vocab_size,
        "draft_vocab_size": head_rows,
        "draft_head": "verifier",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": recipe.num_layers,
        "num_attention_heads": c.num_heads,
        # One layer has to carry what the bonus and the context say through its values alone.
        "num_key_value_heads": c.num_heads if recipe.num_layers == 1 else c.num_kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_context_len,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["full_attention"] * recipe.num_layers,
        "is_causal": False,
        "block_size": recipe.block_len,
        "num_target_layers": c.num_layers,
        "torch_dtype": "bfloat16",
        "dflash_config": {
            "mask_token_id": mask_id(tokenizer),
            "target_layer_ids": aux_layers(c.num_layers, recipe.num_aux),
        },
    }


def aux_layers(num_layers: int, num_aux: int) -> list[int]:
    """Layers spread from the second to the last but one, as far as there are so many."""
    first, last = min(1, num_layers - 1), max(num_layers - 2, 0)
    count = max(num_aux - 1, 1)
    return sorted({first + round(i * (last - first) / count) for i in range(num_aux)})


def mask_id(tokenizer: Tokenizer) -> int:
    """A special id that no text has: the last one that neither begins nor ends a text."""
    begins = tokenizer.backend.token_to_id(tokenizer.bos_token) if tokenizer.bos_token else None
    spare = tokenizer.special_ids - set(tokenizer.eos_ids) - {begins}
    return max(spare) if spare else tokenizer.vocab_size - 1


def chat_loss(
    config: DflashConfig,
    params: Mapping[str, Tensor],
    ends: VerifierEnds,
    reads: list[Read],
    row_of: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """Cross-entropy with the ids that follow and with what the verifier thinks of them.

    row_of: [vocab_size], an id's row of the head, -1 where it has none: such targets count for
    nothing.
    """
    read = reads[int(torch.randint(len(reads), (), generator=rng))]
    rows = torch.randint(len(read.aux), (ROWS_PER_STEP,), generator=rng)
    firsts, lens = read.answers.prompt_lens[rows], read.answers.lens[rows]
    ids = read.answers.ids[rows, : int(lens.max())]
    room = (lens - firsts - config.block_len + 1).clamp(min=1)
    drawn = torch.rand(len(rows), ANCHORS_PER_ROW, generator=rng)
    anchors = (firsts[:, None] + (drawn * room[:, None]).long()).clamp(max=ids.shape[1] - 1)
    at = anchors[..., None] + torch.arange(1, config.block_len)
    real = at < lens[:, None, None]
    at = at.clamp(max=ids.shape[1] - 1)
    line = torch.arange(len(rows))[:, None]
    weights = trained(config, params, ends)
    aux = read.aux[rows, : ids.shape[1]].float()
    blocks = Blocks(anchors, ids[line, anchors], config.block_len)
    log_chances = block_logits(config, weights, aux, blocks).log_softmax(-1)
    hard_rows = row_of[ids[line[..., None], at]]
    hard = -log_chances.gather(-1, hard_rows.clamp(min=0)[..., None])[..., 0] * (hard_rows >= 0)
    top_rows = row_of[read.top_ids[rows[:, None, None], at - 1].long()]
    top = read.top[rows[:, None, None], at - 1].float() * (top_rows >= 0)
    soft = -(top * log_chances.gather(-1, top_rows.clamp(min=0))).sum(-1)
    fade = torch.exp(-torch.arange(config.block_len - 1) / FADE) * real
    return (((1 - SOFT_SHARE) * hard + SOFT_SHARE * soft) * fade).sum() / fade.sum().clamp(min=1)


def _read_all(
    verifier: BatchVerifier, config: DflashConfig, shards: list[Answers], max_bytes: int
) -> list[Read]:
    """The shards with their aux, as many as the bound holds, one at least."""
    found: list[Read] = []
    num_bytes = 0
    for each in shards:
        read = read_answers(verifier, config, each)
        num_bytes += read.aux.nbytes
        if found and num_bytes > max_bytes:
            break
        found.append(read)
    return found


@torch.no_grad()
def read_answers(verifier: BatchVerifier, config: DflashConfig, answers: Answers) -> Read:
    """One pass of the verifier over whole conversations."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    longest = int(answers.lens.max())
    for ids in torch.split(answers.ids[:, :longest], READ_ROWS):
        kv = open_kv(verifier, len(ids), longest)
        start = torch.zeros(len(ids), dtype=torch.int64)
        hidden, taps = forward(verifier, kv, ids, start, config.aux_layers)
        tops = []
        for rows in hidden:
            top = logits_of(verifier, rows).topk(min(TOP_K, config.vocab_size), -1)
            tops.append((top.indices.to(torch.int32), top.values.softmax(-1).to(torch.bfloat16)))
        aux = torch.cat(taps, -1).to(torch.bfloat16)
        parts.append((aux, torch.stack([t[0] for t in tops]), torch.stack([t[1] for t in tops])))
    aux, top_ids, top_values = (torch.cat(each) for each in zip(*parts, strict=True))
    # Out of inference mode, so that the loss's graph may hold them.
    return Read(answers, aux.clone(), top_ids.clone(), top_values.clone())


@torch.no_grad()
def chat_rounds(
    config: DflashConfig, params: Mapping[str, Tensor], ends: VerifierEnds, read: Read
) -> list[list[list[int]]]:
    """By conversation and answered position: the drafts behind it, as rows of the head."""
    weights = trained(config, params, ends)
    found = []
    for ids, aux, start, end in zip(
        read.answers.ids, read.aux, read.answers.prompt_lens, read.answers.lens, strict=True
    ):
        anchors = torch.arange(int(start), int(end))[None]
        drafts = []
        for part in torch.split(anchors, 64, 1):
            blocks = Blocks(part, ids[part], config.block_len)
            drafts.append(block_logits(config, weights, aux[None].float(), blocks).argmax(-1)[0])
        found.append(torch.cat(drafts).tolist())
    return found


__all__ = ["Recipe", "aux_layers", "chat_loss", "chat_rounds", "mask_id", "train_chat_drafter"]
