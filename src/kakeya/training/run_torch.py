"""What every training run shares: budget, schedule, checkpoints and resumption."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kakeya.training.muon_torch import Optimizer, Rates

CHECKPOINT_EVERY_S = 300.0
WARM_UP_STEPS = 50


@dataclass(frozen=True, slots=True)
class Budget:
    """A run: how many tokens in all, and what one step takes of them."""

    num_tokens: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Step:
    """One step's outcome: its loss, and how many of the budget's tokens it took."""

    loss: Tensor
    num_tokens: int


def rate_scale(step: int, share_done: float) -> float:
    """Warm-up over the first steps, then flat, then falling to zero over the last half."""
    falling = 1.0 if share_done < 0.5 else 2 * (1 - share_done)
    return min(1.0, (step + 1) / WARM_UP_STEPS) * max(falling, 0.0)


def run(
    optimizer: Optimizer,
    budget: Budget,
    *,
    take: Callable[[int, float], Step],
    checkpoint: Path,
    now: Callable[[], float],
    report: Callable[[int, float, float], None],
) -> None:
    """Take steps until the budget is spent; goes on from `checkpoint` when there is one.

    take(step number, share of the budget done) computes a loss; what it draws must depend on
    these two alone, so that a resumed run equals an unbroken one.  report(step, share, loss).
    """
    num_tokens = resume(optimizer, checkpoint)
    saved_s = now()
    while num_tokens < budget.num_tokens:
        share = num_tokens / budget.num_tokens
        number = optimizer.num_steps
        step = take(number, share)
        step.loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(budget.rates, scale=rate_scale(number, share))
        num_tokens += step.num_tokens
        report(number, num_tokens / budget.num_tokens, step.loss.item())
        if now() - saved_s > CHECKPOINT_EVERY_S:
            save(optimizer, checkpoint, num_tokens)
            saved_s = now()
    save(optimizer, checkpoint, num_tokens)


def save(optimizer: Optimizer, checkpoint: Path, num_tokens: int) -> None:
    """Write all state at once: a file beside it, then renamed."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    beside = checkpoint.with_suffix(".part")
    counts = {"num_steps": optimizer.num_steps, "num_tokens": num_tokens}
    save_file(optimizer.state(), beside, metadata={"counts": json.dumps(counts)})
    os.replace(beside, checkpoint)


def resume(optimizer: Optimizer, checkpoint: Path) -> int:
    """Tokens already spent; the optimizer's state is the checkpoint's."""
    if not checkpoint.exists():
        return 0
    counts = json.loads(read_metadata(checkpoint)["counts"])
    optimizer.load(load_file(checkpoint), counts["num_steps"])
    return int(counts["num_tokens"])


def read_metadata(file: Path) -> dict[str, str]:
    """The header's texts of a safetensors file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    return dict(header.get("__metadata__", {}))


def write_checkpoint(
    folder: Path,
    config: Mapping[str, object],
    params: Mapping[str, Tensor],
    card: Mapping[str, object],
) -> None:
    """Write config.json, the weights in bfloat16, and training.json: `card` and their number."""
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    weights = {
        name: (p.detach().to(torch.bfloat16) if p.is_floating_point() else p).contiguous()
        for name, p in params.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    whole_card = {**card, "parameters": sum(p.numel() for p in params.values())}
    (folder / "training.json").write_text(json.dumps(whole_card, indent=1) + "\n")
