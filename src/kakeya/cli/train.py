"""`kakeya train …`: the programs that made the tiny set, and what it is worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kakeya.embedded.models import TINY_FOLDER
from kakeya.training import (
    dlm_torch,
    drafter_torch,
    evaluate_dlm_torch,
    evaluate_torch,
    ftheta_torch,
    verifier_torch,
)

train_app = App(
    name="train", help="Train the tiny verifier and its proposers; resumes what was begun."
)

VERIFIER, DRAFTER = TINY_FOLDER / "verifier", TINY_FOLDER / "drafter"
Tokens = Annotated[int, Parameter(help="How many tokens to learn from in all.")]
Seed = Annotated[int, Parameter(help="Of all chance: equal seeds give equal weights.")]
From = Annotated[Path, Parameter(help="The verifier's folder.")]


@train_app.command
def verifier(out: Path, *, tokens: Tokens = 6_000_000, seed: Seed = 1) -> int:
    """Train the verifier on Python's standard library and write its folder to OUT."""
    with _bar("verifier") as report:
        verifier_torch.train_verifier(out, num_tokens=tokens, seed=seed, report=report)
    return 0


@train_app.command
def drafter(
    out: Path,
    *,
    verifier: From = VERIFIER,
    tokens: Tokens = 7_000_000,
    continued: Annotated[int, Parameter(help="Tokens the verifier writes first.")] = 500_000,
    seed: Seed = 1,
) -> int:
    """Train the verifier's DFlash drafter and write its folder to OUT."""
    with _bar("drafter") as report:
        drafter_torch.train_drafter(
            out, verifier, num_tokens=tokens, num_continued=continued, seed=seed, report=report
        )
    return 0


@train_app.command
def dlm(out: Path, *, verifier: From = VERIFIER, tokens: Tokens = 2_000_000, seed: Seed = 1) -> int:
    """Train the masked-diffusion proposer from the verifier's weights, write it to OUT, and judge
    it on held-out text."""
    with _bar("dLM") as report:
        dlm_torch.train_dlm(out, verifier, num_tokens=tokens, seed=seed, report=report)
    figures = evaluate_dlm_torch.evaluate_dlm(verifier, out, num_prompts=12, seed=seed)
    dlm_torch.add_to_card(out, {"held_out": figures})
    return 0


@train_app.command
def ftheta(
    drafter: Path, *, verifier: From = VERIFIER, tokens: Tokens = 200_000, seed: Seed = 1
) -> int:
    """Fit f_θ for the DRAFTER folder and write it there."""
    with _bar("f_θ") as report:
        ftheta_torch.fit_ftheta(verifier, drafter, num_tokens=tokens, seed=seed, report=report)
    return 0


@train_app.command
def evaluate(
    *, verifier: From = VERIFIER, drafter: Path = DRAFTER, prompts: int = 40, seed: Seed = 1
) -> int:
    """Print what verifier, drafter and f_θ are worth on held-out text, as one JSON object."""
    figures = {
        **evaluate_torch.evaluate_verifier(verifier, num_tokens=40_000, seed=seed),
        **evaluate_torch.evaluate_drafter(verifier, drafter, num_prompts=prompts, seed=seed),
        **evaluate_torch.evaluate_ftheta(verifier, drafter, num_prompts=prompts // 2, seed=seed),
    }
    print(msgspec.json.format(msgspec.json.encode(figures), indent=1).decode())
    return 0


class _bar:  # noqa: N801 - used as a function is
    """A progress bar on stderr; what it gives takes (step, share done, loss)."""

    def __init__(self, what: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(what, total=1.0)
        self._what = what

    def __enter__(self) -> _bar:
        self._progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def __call__(self, step: int, share: float, loss: float) -> None:
        self._progress.update(
            self._task, completed=share, description=f"{self._what}: loss {loss:.2f}"
        )
        if step % 100 == 0 and not sys.stderr.isatty():
            print(f"step {step}, {share:.1%}, loss {loss:.3f}", file=sys.stderr)
