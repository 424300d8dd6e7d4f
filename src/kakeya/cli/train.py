"""`kakeya train …`: the programs that made the tiny set, and what it is worth."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from kakeya.embedded.models import TINY, TINY_FOLDER, resolve_model
from kakeya.training import (
    chat_drafter_torch,
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
    verifier: Annotated[str, Parameter(help="A model's name, or its folder.")] = TINY,
    tokens: Annotated[int | None, Parameter(help="Drafted positions to learn in all.")] = None,
    continued: Annotated[int | None, Parameter(help="Tokens the verifier writes first.")] = None,
    layers: Annotated[int, Parameter(help="Layers of the drafter; of a chat model's.")] = 1,
    aux: Annotated[int, Parameter(help="Layers it reads of the verifier; likewise.")] = 5,
    block: Annotated[int, Parameter(help="Rows of a block, the bonus counted; likewise.")] = 4,
    head: Annotated[int, Parameter(help="Rows of the verifier's head; 0: all of them.")] = 8192,
    seed: Seed = 1,
) -> int:
    """Train a verifier's DFlash drafter and write its folder to OUT.

    The tiny verifier's learns from code; any other one's from what the model answers to prompts
    that are put together here.  Goes on where it was stopped.
    """
    is_tiny = verifier == TINY or Path(verifier).resolve() == VERIFIER.resolve()
    with _bar("drafter") as report:
        if is_tiny:
            drafter_torch.train_drafter(
                out,
                VERIFIER,
                num_tokens=tokens or 7_000_000,
                num_continued=continued or 500_000,
                seed=seed,
                report=report,
            )
        else:
            chat_drafter_torch.train_chat_drafter(
                out,
                resolve_model(verifier, os.environ, lambda words, share: None),
                recipe=chat_drafter_torch.Recipe(layers, aux, block, head),
                num_tokens=tokens or 1_200_000,
                num_continued=continued or 150_000,
                seed=seed,
                report=report,
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
