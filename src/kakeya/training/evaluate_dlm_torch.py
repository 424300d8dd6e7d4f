"""What the masked-diffusion proposer is worth on text it has never seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from kakeya.training.dlm_torch import masked_loss, rounds_of
from kakeya.training.drafter_torch import corpus_ids, load_tiny, rows_of
from kakeya.training.evaluate_torch import FIRST_LEN, PROMPT_LEN, Figures, answers, loops

NUM_STEPS = (1, 2, 4, 8)
ROW_LEN, NUM_ROWS = 256, 40


def evaluate_dlm(verifier: Path, dlm: Path, *, num_prompts: int, seed: int) -> Figures:
    """Held-out masked cross-entropy (with the verifier's verdicts mixed in, as it is trained), and
    tokens a round over the verifier's texts by number of steps.

    greedy: the first ids of greedy answers.  sampled: answers at a temperature of 0.7 without a
    loop.
    """
    tiny = load_tiny(verifier)
    params = {name: p.float() for name, p in load_file(dlm / "model.safetensors").items()}
    text = corpus_ids(verifier, held_out=True)
    rng = np.random.default_rng((seed, 8))
    losses = []
    with torch.no_grad():
        for start in rng.integers(0, len(text) - ROW_LEN, NUM_ROWS):
            ids = rows_of(text, np.array([start]), ROW_LEN)
            losses.append(masked_loss(params, tiny, ids, rng).item())
    figures: Figures = {"held_out_loss": round(float(np.mean(losses)), 3)}
    greedy = answers(tiny, verifier, num_prompts, seed=seed, temperature=0.0)
    sampled = answers(tiny, verifier, num_prompts, seed=seed + 1, temperature=0.7)
    texts = {
        "greedy": greedy[:, : PROMPT_LEN + FIRST_LEN + 8],
        "sampled": torch.stack([row for row in sampled if not loops(row.tolist())]),
    }
    for name, rows in texts.items():
        for num_steps in NUM_STEPS:
            rate = rounds_of(params, tiny.shape, rows, PROMPT_LEN, num_steps)
            figures[f"{name}_tokens_per_round_{num_steps}_steps"] = round(rate, 3)
    return figures


__all__ = ["evaluate_dlm"]
