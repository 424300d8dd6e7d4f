"""Train the tiny verifier's DFlash drafter on the verifier's own continuations and on real text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from kakeya.drafting.dflash_checkpoint import weight_shapes
from kakeya.drafting.dflash_config import DflashConfig, read_dflash_config
from kakeya.drafting.dflash_training_torch import Blocks, block_logits, trained
from kakeya.drafting.dflash_weights_torch import DflashWeights, VerifierEnds
from kakeya.training.corpus import read_sources, standard_library
from kakeya.training.decoder_torch import (
    DecoderShape,
    Params,
    hidden_states,
    initial,
    matrices,
    shape_json,
)
from kakeya.training.generate_torch import continue_all
from kakeya.training.muon_torch import Optimizer, Rates
from kakeya.training.run_torch import Budget, Step, run, write_checkpoint
from kakeya.training.tokens import MASK_ID, encode_all

BLOCK_LEN = 8
AUX_LAYERS = (1, 3, 5)
NUM_LAYERS = 2
# One sequence: a prompt of real text, and what the verifier makes of it.
PROMPT_LEN, CONTINUED_LEN = 64, 192
ROW_LEN = PROMPT_LEN + CONTINUED_LEN
BATCH = 64
ROWS_PER_STEP = 8
ANCHORS_PER_ROW = 40
REAL_SHARE = 0.3
# Drafts matter less the further they lie behind: exp(-(k - 1) / 4), after the DFlash paper.
FADE = 4.0
TOP_K = 8
SOFT_SHARE = 0.5
Report = Callable[[int, float, float], None]


@dataclass(frozen=True, slots=True, eq=False)
class TinyVerifier:
    """The trained verifier, as training sees it."""

    shape: DecoderShape
    params: Params

    @property
    def ends(self) -> VerifierEnds:
        embedding = self.params["model.embed_tokens.weight"]
        return VerifierEnds(embedding, embedding)

    @torch.no_grad()
    def read(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """aux [B, T, num_aux * hidden_size] and logits [B, T, vocab_size] over ids [B, T]."""
        outputs = hidden_states(self.params, ids, self.shape)
        aux = torch.cat([outputs[layer] for layer in AUX_LAYERS], -1)
        return aux, outputs[-1] @ self.params["model.embed_tokens.weight"].T


def load_tiny(folder: Path) -> TinyVerifier:
    """The verifier in `folder`, in float32."""
    params = {name: p.float() for name, p in load_file(folder / "model.safetensors").items()}
    return TinyVerifier(DecoderShape(), params)


def corpus_ids(folder: Path, *, held_out: bool) -> NDArray[np.uint16]:
    """One side of the corpus in the ids of the tokenizer in `folder`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sources = read_sources(standard_library(), held_out=held_out)
    return encode_all(tokenizer, [source.text for source in sources])


def rows_of(ids: NDArray[np.uint16], starts: NDArray[np.int64], length: int) -> Tensor:
    return torch.from_numpy(np.stack([ids[s : s + length] for s in starts]).astype(np.int64))


def continuations(
    tiny: TinyVerifier, ids: NDArray[np.uint16], *, num_ids: int, seed: int, report: Report
) -> Tensor:
    """Prompts of real text with what the verifier says behind them: [rows, ROW_LEN].

    A third greedy, the others at a temperature of 0.5 to 0.8.
    """
    rng = np.random.default_rng((seed, 1))
    noise = torch.Generator().manual_seed(seed)
    rows: list[Tensor] = []
    num_batches = -(-num_ids // (BATCH * CONTINUED_LEN))
    for number in range(num_batches):
        starts = rng.integers(0, len(ids) - ROW_LEN, BATCH)
        heat = torch.from_numpy(rng.uniform(0.5, 0.8, BATCH).astype(np.float32))
        heat[: BATCH // 3] = 0
        rows.append(
            continue_all(
                tiny.params,
                tiny.shape,
                rows_of(ids, starts, PROMPT_LEN),
                num_ids=CONTINUED_LEN,
                temperatures=heat,
                rng=noise,
            )
        )
        report(number, (number + 1) / num_batches, 0.0)
    return torch.cat(rows)


def drafter_json(shape: DecoderShape) -> dict[str, object]:
    """config.json of the drafter, in the published layout."""
    return {
        "architectures": ["DFlashDraftModel"],
        **shape_json(shape),
        "num_hidden_layers": NUM_LAYERS,
        "layer_types": ["full_attention"] * NUM_LAYERS,
        "is_causal": False,
        "block_size": BLOCK_LEN,
        "num_target_layers": shape.num_layers,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(AUX_LAYERS)},
    }


def train_drafter(
    folder: Path,
    verifier_folder: Path,
    *,
    num_tokens: int,
    num_continued: int,
    seed: int,
    report: Report,
) -> None:
    """Train (or go on training) and write the drafter's folder, weights in bfloat16.

    num_tokens: drafted positions in all.  num_continued: ids the verifier writes to learn from.
    """
    tiny = load_tiny(verifier_folder)
    real = corpus_ids(verifier_folder, held_out=False)
    written = _written(folder, tiny, real, num_ids=num_continued, seed=seed, report=report)
    config = read_dflash_config(drafter_json(tiny.shape))
    rng = torch.Generator().manual_seed(seed)
    params = initial(weight_shapes(config, ()), rng)

    def take(step: int, share: float) -> Step:
        del share
        ids = _mixed(written, real, seed=seed, step=step)
        loss = drafting_loss(config, trained(config, params, tiny.ends), tiny, ids, step, seed)
        return Step(loss, ROWS_PER_STEP * ANCHORS_PER_ROW * (BLOCK_LEN - 1))

    run(
        Optimizer(params, matrices(params)),
        Budget(num_tokens, Rates()),
        take=take,
        checkpoint=folder / "training.safetensors",
        now=time.monotonic,
        report=report,
    )
    card = {"trained_positions": num_tokens, "continued_tokens": num_continued, "seed": seed}
    write_checkpoint(folder, drafter_json(tiny.shape), params, card)


def drafting_loss(
    config: DflashConfig,
    weights: DflashWeights,
    tiny: TinyVerifier,
    ids: Tensor,
    step: int,
    seed: int,
) -> Tensor:
    """Cross-entropy with the ids that follow, and with what the verifier thinks of them."""
    B, T = ids.shape
    aux, verdicts = tiny.read(ids)
    rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
    anchors = torch.randint(1, T - BLOCK_LEN, (B, ANCHORS_PER_ROW), generator=rng)
    rows = torch.arange(B)[:, None]
    blocks = Blocks(anchors, ids[rows, anchors], BLOCK_LEN)
    logits = block_logits(config, weights, aux, blocks)
    at = anchors[..., None] + torch.arange(1, BLOCK_LEN)
    targets = ids[rows[..., None], at]
    log_chances = logits.log_softmax(-1)
    hard = -log_chances.gather(-1, targets[..., None])[..., 0]
    top = verdicts[rows[..., None], at - 1].topk(TOP_K, -1)
    soft = -(top.values.softmax(-1) * log_chances.gather(-1, top.indices)).sum(-1)
    fade = torch.exp(-torch.arange(BLOCK_LEN - 1) / FADE)
    mixed = (1 - SOFT_SHARE) * hard + SOFT_SHARE * soft
    return (mixed * fade).sum() / (fade.sum() * anchors.numel())


@torch.no_grad()
def rounds_of(
    config: DflashConfig, weights: DflashWeights, tiny: TinyVerifier, ids: Tensor, first: int
) -> tuple[float, list[float]]:
    """Tokens a round over ids [B, T] from position `first` on, and acceptance by position.

    A round drafts a block at its bonus, and the ids of the text decide: exact for greedy text and
    for sampled text alike, since drafts are accepted where they equal the verifier's choice.
    """
    B, T = ids.shape
    aux, _ = tiny.read(ids)
    num_drafts = BLOCK_LEN - 1
    anchors = torch.arange(first, T - BLOCK_LEN).expand(B, -1)
    rows = torch.arange(B)[:, None]
    hits = []
    for part in torch.split(anchors, 64, 1):
        blocks = Blocks(part, ids[rows, part], BLOCK_LEN)
        drafted = block_logits(config, weights, aux, blocks).argmax(-1)
        at = part[..., None] + torch.arange(1, BLOCK_LEN)
        hits.append((drafted == ids[rows[..., None], at]).long().cumprod(-1).sum(-1))
    accepted = torch.cat(hits, 1)
    num_rounds, num_ids, by_position = 0, 0, [0] * num_drafts
    for row in accepted.tolist():
        bonus_at = 0
        while bonus_at < len(row):
            num_rounds += 1
            num_ids += 1 + row[bonus_at]
            for i in range(row[bonus_at]):
                by_position[i] += 1
            bonus_at += 1 + row[bonus_at]
    return num_ids / num_rounds, [hit / num_rounds for hit in by_position]


def _written(
    folder: Path,
    tiny: TinyVerifier,
    real: NDArray[np.uint16],
    *,
    num_ids: int,
    seed: int,
    report: Report,
) -> Tensor:
    """The verifier's continuations, kept beside the checkpoint so that they are written once."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "continuations.safetensors"
    if not file.exists():
        rows = continuations(tiny, real, num_ids=num_ids, seed=seed, report=report)
        save_file({"ids": rows.to(torch.int16)}, file)
    return load_file(file)["ids"].long()


def _mixed(written: Tensor, real: NDArray[np.uint16], *, seed: int, step: int) -> Tensor:
    rng = np.random.default_rng((seed, 2, step))
    num_real = round(ROWS_PER_STEP * REAL_SHARE)
    own = written[torch.from_numpy(rng.integers(0, len(written), ROWS_PER_STEP - num_real))]
    return torch.cat((own, rows_of(real, rng.integers(0, len(real) - ROW_LEN, num_real), ROW_LEN)))


__all__ = [
    "TinyVerifier",
    "continuations",
    "corpus_ids",
    "drafting_loss",
    "load_tiny",
    "rounds_of",
    "train_drafter",
]
