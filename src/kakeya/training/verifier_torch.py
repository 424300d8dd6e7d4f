"""Train the tiny verifier: a Qwen3 decoder of 1.4 M parameters on the standard library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from kakeya.training.corpus import digest, read_sources, standard_library
from kakeya.training.decoder_torch import (
    DecoderShape,
    config_json,
    decoder_shapes,
    initial,
    logits,
    matrices,
)
from kakeya.training.muon_torch import Optimizer, Rates
from kakeya.training.run_torch import Budget, Step, run, write_checkpoint
from kakeya.training.tokens import EOS_ID, encode_all, train_tokenizer, write_tokenizer

# Tokens of a step; rows get longer for the last third, so that far positions are learned too.
STEP_TOKENS = 2048
SHORT_LEN, LONG_LEN = 256, 512
LONG_FROM = 2 / 3


def row_len(share: float) -> int:
    return SHORT_LEN if share < LONG_FROM else LONG_LEN


def batch_at(ids: NDArray[np.uint16], *, seed: int, step: int, T: int) -> torch.Tensor:
    """[STEP_TOKENS / T, T + 1] ids from places that depend on seed and step alone."""
    rng = np.random.default_rng((seed, step))
    starts = rng.integers(0, len(ids) - T - 1, STEP_TOKENS // T)
    return torch.from_numpy(np.stack([ids[s : s + T + 1] for s in starts]).astype(np.int64))


def train_verifier(
    folder: Path,
    *,
    num_tokens: int,
    seed: int,
    report: Callable[[int, float, float], None],
) -> None:
    """Train (or go on training) and write a checkpoint folder: weights in bfloat16."""
    sources = list(read_sources(standard_library(), held_out=False))
    tokenizer = train_tokenizer(source.text for source in sources)
    write_tokenizer(tokenizer, folder)
    ids = encode_all(tokenizer, [source.text for source in sources])
    shape = DecoderShape()
    params = initial(decoder_shapes(shape), torch.Generator().manual_seed(seed))

    def take(step: int, share: float) -> Step:
        batch = batch_at(ids, seed=seed, step=step, T=row_len(share))
        loss = F.cross_entropy(
            logits(params, batch[:, :-1], shape).flatten(0, 1), batch[:, 1:].flatten()
        )
        return Step(loss, batch[:, 1:].numel())

    run(
        Optimizer(params, matrices(params)),
        Budget(num_tokens, Rates()),
        take=take,
        checkpoint=folder / "training.safetensors",
        now=time.monotonic,
        report=report,
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}) + "\n")
    card = {
        "corpus": "the Python standard library's .py files (PSF licence), training side",
        "corpus_sha256": digest(sources),
        "corpus_files": len(sources),
        "corpus_tokens": len(ids),
        "trained_tokens": num_tokens,
        "seed": seed,
    }
    write_checkpoint(folder, config_json(shape, eos_id=EOS_ID), params, card)
