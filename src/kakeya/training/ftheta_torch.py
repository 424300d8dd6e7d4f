"""Fit the tiny pair's f_θ: ridge least squares from the drafter's K/V to the verifier's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kakeya.drafting.dflash_config import DflashConfig, read_dflash_config
from kakeya.drafting.dflash_torch import context_features, context_rows
from kakeya.drafting.dflash_training_torch import trained
from kakeya.drafting.dflash_weights_torch import DflashWeights
from kakeya.drafting.ftheta import FILE, PIECE_LEN, Target
from kakeya.drafting.ftheta_torch import prompt_features
from kakeya.training.decoder_torch import hidden_states, qkv, rms_norm
from kakeya.training.drafter_torch import (
    AUX_LAYERS,
    Report,
    TinyVerifier,
    corpus_ids,
    drafter_json,
    load_tiny,
    rows_of,
)

ROW_LEN, BATCH = 512, 8
RIDGE = 1e-4  # of the features' mean square


@dataclass(slots=True)
class Sums:
    """Sums of products over all rows seen: features with themselves, and with the targets."""

    xx: Tensor
    xy: Tensor
    num_rows: int = 0

    def add(self, x: Tensor, y: Tensor) -> None:
        """x: [rows, features], y: [rows, targets]; a constant is added to the features."""
        x = torch.cat((x, torch.ones(len(x), 1)), 1).double()
        self.xx += x.T @ x
        self.xy += x.T @ y.double()
        self.num_rows += len(x)

    def solve(self) -> Tensor:
        """[targets, features + 1], float32."""
        ridge = RIDGE * self.xx.diagonal().mean() * torch.eye(len(self.xx), dtype=torch.float64)
        solved: Tensor = torch.linalg.solve(self.xx + ridge, self.xy)
        return solved.T.float()


def fit_ftheta(
    verifier_folder: Path, drafter_folder: Path, *, num_tokens: int, seed: int, report: Report
) -> None:
    """Fit on `num_tokens` of the training text and write FILE beside the drafter, in bfloat16."""
    tiny = load_tiny(verifier_folder)
    config, weights = load_for_fit(tiny, drafter_folder)
    text = corpus_ids(verifier_folder, held_out=False)
    rng = np.random.default_rng((seed, 3))
    alone: Sums | None = None
    seeded: Sums | None = None
    num_batches = -(-num_tokens // (ROW_LEN * BATCH))
    for number in range(num_batches):
        ids = rows_of(text, rng.integers(0, len(text) - ROW_LEN, BATCH), ROW_LEN)
        own, context, y = features_and_targets(tiny, config, weights, ids)
        both = torch.cat((own, context), 1)
        alone = alone or _empty(own.shape[1], y.shape[1])
        seeded = seeded or _empty(both.shape[1], y.shape[1])
        alone.add(own, y)
        seeded.add(both, y)
        report(number, (number + 1) / num_batches, 0.0)
    assert alone is not None
    assert seeded is not None
    shape = tiny.shape
    target = Target(shape.layer_types, shape.sliding_window, shape.num_kv_heads, shape.head_dim)
    maps = {"alone": alone.solve(), "seeded": seeded.solve()}
    save_file(
        {name: matrix.to(torch.bfloat16).contiguous() for name, matrix in maps.items()},
        drafter_folder / FILE,
        metadata={"target": msgspec.json.encode(target).decode()},
    )


def load_for_fit(tiny: TinyVerifier, drafter_folder: Path) -> tuple[DflashConfig, DflashWeights]:
    """The trained drafter in float32, as training sees it."""
    config = read_dflash_config(drafter_json(tiny.shape))
    tensors = load_file(drafter_folder / "model.safetensors")
    params = {name: p.float() for name, p in tensors.items()}
    return config, trained(config, params, tiny.ends)


@torch.no_grad()
def features_and_targets(
    tiny: TinyVerifier, config: DflashConfig, weights: DflashWeights, ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Over ids [B, T]: the prompt's features, the context's, and the verifier's K and V.

    All [B * T, n].  K is what goes into k_norm, scaled to a root mean square of 1 a head, for
    that is all the norm leaves of it.
    """
    B, T = ids.shape
    outputs = hidden_states(tiny.params, ids, tiny.shape)
    own = [
        prompt_features(config, weights, ids[:, start : start + PIECE_LEN], start)
        for start in range(0, T, PIECE_LEN)
    ]
    aux = torch.cat([outputs[layer] for layer in AUX_LAYERS], -1)
    rows = context_rows(config, weights, context_features(config, weights, aux))
    context = torch.cat((rows.k.flatten(2), rows.v.flatten(2)), -1)
    inputs = [tiny.params["model.embed_tokens.weight"][ids], *outputs[:-2]]
    targets = []
    for i, x in enumerate(inputs):
        at = f"model.layers.{i}"
        x = rms_norm(x, tiny.params[f"{at}.input_layernorm.weight"], tiny.shape.eps)
        _, _, v, k = qkv(tiny.params, f"{at}.self_attn", x, tiny.shape)
        unit = k * (k.square().mean(-1, keepdim=True) + tiny.shape.eps).rsqrt()
        targets += [unit.transpose(1, 2).flatten(2), v.transpose(1, 2).flatten(2)]
    flat = (torch.cat(own, 1), context, torch.cat(targets, -1))
    first, second, third = (each.reshape(B * T, -1) for each in flat)
    return first, second, third


def _empty(num_features: int, num_targets: int) -> Sums:
    n = num_features + 1
    return Sums(
        torch.zeros(n, n, dtype=torch.float64), torch.zeros(n, num_targets, dtype=torch.float64)
    )


__all__ = ["features_and_targets", "fit_ftheta", "load_for_fit"]
