"""Train the tiny masked-diffusion language model, on real text and the verifier's word on it.

It starts from the verifier's weights, as Dream (Ye et al. 2025) starts from an autoregressive
model, and keeps that model's shift: the row at position p says what stands at p + 1.  Its mask is
block diffusion's (Arriola et al. 2025): the rows of the text see what is before them, and a block's
rows see the text before the block and the whole block.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.drafting.unmasking import num_revealed
from kakeya.training.corpus import digest, read_sources, standard_library
from kakeya.training.decoder_torch import (
    DecoderShape,
    Params,
    causal_masks,
    config_json,
    matrices,
    mlp,
    qkv,
    rms_norm,
    rotate,
    rotations,
)
from kakeya.training.drafter_torch import TinyVerifier, corpus_ids, load_tiny, rows_of
from kakeya.training.muon_torch import Optimizer, Rates
from kakeya.training.run_torch import Budget, Step, run, write_checkpoint
from kakeya.training.tokens import EOS_ID, MASK_ID

# The block's first row is the last id of the text before it, the others are drafted.
BLOCK_LEN = 8
ROW_LEN, ROWS_PER_STEP = 256, 4
# It begins where the verifier ended: smaller steps than from nothing.
RATES = Rates(matrix=0.005, other=1e-3)
TOP_K, SOFT_SHARE = 8, 0.5
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True, slots=True, eq=False)
class MaskedBlocks:
    """Blocks over a batch of texts, each block on its own.

    anchors: [num_blocks], the position of each block's first row, the same in every text.
    ids: [B, num_blocks, BLOCK_LEN], MASK_ID where a row is masked.
    """

    anchors: Tensor
    ids: Tensor


def dlm_json(shape: DecoderShape) -> dict[str, object]:
    """config.json: a decoder's, and what makes it a masked-diffusion model."""
    return {
        **config_json(shape, eos_id=EOS_ID),
        "architectures": ["KakeyaMaskedDiffusionLM"],
        "masked_diffusion": {"mask_token_id": MASK_ID, "block_len": BLOCK_LEN},
    }


def train_dlm(
    folder: Path,
    verifier_folder: Path,
    *,
    num_tokens: int,
    seed: int,
    report: Callable[[int, float, float], None],
) -> None:
    """Train (or go on training) and write a checkpoint folder, weights in bfloat16.

    num_tokens: tokens of text read in all; each is masked in about half of the steps.
    """
    tiny = load_tiny(verifier_folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(verifier_folder / name, folder / name)
    sources = list(read_sources(standard_library(), held_out=False))
    text = corpus_ids(verifier_folder, held_out=False)
    params = {name: p.clone().requires_grad_() for name, p in tiny.params.items()}

    def take(step: int, share: float) -> Step:
        del share
        rng = np.random.default_rng((seed, 7, step))
        ids = rows_of(text, rng.integers(0, len(text) - ROW_LEN, ROWS_PER_STEP), ROW_LEN)
        return Step(masked_loss(params, tiny, ids, rng), ids.numel())

    run(
        Optimizer(params, matrices(params)),
        Budget(num_tokens, RATES),
        take=take,
        checkpoint=folder / "training.safetensors",
        now=time.monotonic,
        report=report,
    )
    card = {
        "corpus": "the Python standard library's .py files (PSF licence), training side",
        "corpus_sha256": digest(sources),
        "corpus_files": len(sources),
        "trained_tokens": num_tokens,
        "started_from": "the tiny verifier",
        "seed": seed,
    }
    write_checkpoint(folder, dlm_json(tiny.shape), params, card)


def add_to_card(folder: Path, facts: Mapping[str, object]) -> None:
    """Put `facts` into the folder's training.json."""
    file = folder / "training.json"
    card = json.loads(file.read_text()) | dict(facts)
    file.write_text(json.dumps(card, indent=1) + "\n")


def masked_loss(
    params: Params, tiny: TinyVerifier, ids: Tensor, rng: np.random.Generator
) -> Tensor:
    """Cross-entropy at the masked rows of ids [B, T], with the text and with the verifier.

    The text is cut into blocks at a random offset; of each block's drafted rows a random number
    (1 … all, evenly) is masked.
    """
    B, T = ids.shape
    num_blocks = T // BLOCK_LEN - 1
    anchors = torch.from_numpy(rng.integers(0, BLOCK_LEN) + np.arange(num_blocks) * BLOCK_LEN)
    at = anchors[:, None] + torch.arange(BLOCK_LEN)
    drafted = BLOCK_LEN - 1
    order = rng.random((B, num_blocks, drafted)).argsort(-1)
    is_masked = torch.from_numpy(order < rng.integers(1, drafted + 1, (B, num_blocks, 1)))
    noisy = ids[:, at].clone()
    noisy[:, :, 1:][is_masked] = MASK_ID
    logits = block_logits(params, tiny.shape, ids, MaskedBlocks(anchors, noisy), is_masked)
    _, verdicts = tiny.read(ids)
    targets = ids[:, at][:, :, 1:][is_masked]
    log_chances = logits.log_softmax(-1)
    hard = -log_chances.gather(-1, targets[:, None])[:, 0]
    top = verdicts[:, at[:, :-1]][is_masked].topk(TOP_K, -1)
    soft = -(top.values.softmax(-1) * log_chances.gather(-1, top.indices)).sum(-1)
    return ((1 - SOFT_SHARE) * hard + SOFT_SHARE * soft).mean()


def block_logits(
    params: Params,
    shape: DecoderShape,
    ids: Tensor,
    blocks: MaskedBlocks,
    is_wanted: Tensor,
) -> Tensor:
    """[wanted, vocab_size]: what is said of the drafted rows of `blocks` over texts ids [B, T].

    is_wanted: [B, num_blocks, BLOCK_LEN - 1].
    """
    B, T = ids.shape
    positions = torch.cat(
        (torch.arange(T), (blocks.anchors[:, None] + torch.arange(BLOCK_LEN)).flatten())
    )
    cos, sin = rotations(positions, shape.head_dim, shape.rope_theta)
    masks = _masks(T, blocks.anchors, shape.sliding_window)
    x = params["model.embed_tokens.weight"][torch.cat((ids, blocks.ids.flatten(1)), 1)]
    for i, layer_type in enumerate(shape.layer_types):
        at = f"model.layers.{i}"
        normed = rms_norm(x, params[f"{at}.input_layernorm.weight"], shape.eps)
        q, k, v, _ = qkv(params, f"{at}.self_attn", normed, shape)
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            attn_mask=masks[layer_type],
            enable_gqa=True,
        )
        x = x + mixed.transpose(1, 2).flatten(2) @ params[f"{at}.self_attn.o_proj.weight"].T
        normed = rms_norm(x, params[f"{at}.post_attention_layernorm.weight"], shape.eps)
        x = x + mlp(params, f"{at}.mlp", normed)
    # The shift: the row before a masked one says what stands there.
    rows = x[:, T:].view(B, -1, BLOCK_LEN, shape.hidden_size)[:, :, :-1][is_wanted]
    return rms_norm(rows, params["model.norm.weight"], shape.eps) @ (
        params["model.embed_tokens.weight"].T
    )


def _masks(T: int, anchors: Tensor, window: int) -> dict[str, Tensor]:
    """layer type → [T + rows, T + rows], True where a row may look: the text's rows come first."""
    num_rows = len(anchors) * BLOCK_LEN
    block = torch.arange(len(anchors)).repeat_interleave(BLOCK_LEN)
    start = anchors.repeat_interleave(BLOCK_LEN)
    position = start + torch.arange(BLOCK_LEN).repeat(len(anchors))
    before = torch.arange(T)[None] < start[:, None]
    near = position[:, None] - torch.arange(T)[None] < window
    mates = block[:, None] == block[None]
    masks = {}
    for layer_type, text in causal_masks(T, window).items():
        seen = before if layer_type == "full_attention" else before & near
        whole = torch.zeros(T + num_rows, T + num_rows, dtype=torch.bool)
        whole[:T, :T] = text
        whole[T:, :T] = seen
        whole[T:, T:] = mates
        masks[layer_type] = whole
    return masks


@torch.no_grad()
def denoised(
    params: Params, shape: DecoderShape, ids: Tensor, anchors: Tensor, num_steps: int
) -> Tensor:
    """[B, num_blocks, BLOCK_LEN - 1]: blocks drafted at `anchors` of texts ids [B, T].

    As drafting/diffusion drafts them: at each step the likeliest masked ids are kept.
    """
    drafted = BLOCK_LEN - 1
    noisy = torch.full((len(ids), len(anchors), BLOCK_LEN), MASK_ID)
    noisy[:, :, 0] = ids[:, anchors]
    is_wanted = torch.ones(len(ids), len(anchors), drafted, dtype=torch.bool)
    for count in num_revealed(drafted, num_steps):
        logits = block_logits(params, shape, ids, MaskedBlocks(anchors, noisy), is_wanted)
        logits[:, MASK_ID] = -torch.inf
        best = logits.softmax(-1).max(-1)
        is_masked = noisy[:, :, 1:] == MASK_ID
        chances = best.values.view(is_masked.shape).where(is_masked, torch.tensor(-1.0))
        kept = torch.zeros_like(is_masked).scatter_(-1, chances.topk(count, -1).indices, True)
        found = best.indices.view(is_masked.shape)
        noisy[:, :, 1:] = torch.where(kept & is_masked, found, noisy[:, :, 1:])
    return noisy[:, :, 1:]


@torch.no_grad()
def rounds_of(
    params: Params, shape: DecoderShape, ids: Tensor, first: int, num_steps: int
) -> float:
    """Tokens a round over texts ids [B, T] from position `first` on; the ids of the text decide."""
    anchors = torch.arange(first, ids.shape[1] - BLOCK_LEN)
    hits = []
    for part in torch.split(anchors, 48):
        drafts = denoised(params, shape, ids, part, num_steps)
        true = ids[:, part[:, None] + torch.arange(1, BLOCK_LEN)]
        hits.append((drafts == true).long().cumprod(-1).sum(-1))
    num_rounds = num_ids = 0
    for row in torch.cat(hits, 1).tolist():
        at = 0
        while at < len(row):
            num_rounds, num_ids, at = num_rounds + 1, num_ids + 1 + row[at], at + 1 + row[at]
    return num_ids / num_rounds


__all__ = ["BLOCK_LEN", "add_to_card", "denoised", "masked_loss", "rounds_of", "train_dlm"]
