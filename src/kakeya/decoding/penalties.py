"""What changes the verifier's logits before it chooses: penalties for what was said, and biases.

Applied position by position: at a row behind drafts, those drafts count as said.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.errors import demand

Floats = NDArray[np.float64]
MAX_BIASES = 1024


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Applied in this order; the defaults change nothing.

    repetition: ids of prompt and text have a positive logit divided by it, a negative multiplied.
    frequency: is taken off for every time an id stands in the text so far; presence: once, if it
    does.  biases: (id, what is added), each id once.
    """

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    biases: tuple[tuple[int, float], ...] = ()

    @property
    def looks_back(self) -> bool:
        """Whether it goes by what was said."""
        return self.repetition != 1 or self.frequency != 0 or self.presence != 0

    @property
    def changes(self) -> bool:
        return self.looks_back or bool(self.biases)

    @property
    def stretch(self) -> float:
        """How much larger a difference of two logits may get."""
        return max(self.repetition, 1 / self.repetition)


UNCHANGED = Reshaping()


class History:
    """How often each id stands in prompt and text of one generation."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._in_prompt = np.zeros(vocab_size, dtype=np.bool_)
        self._in_prompt[list(prompt_ids)] = True
        self._counts = np.zeros(vocab_size, dtype=np.int64)

    def add(self, ids: Sequence[int]) -> None:
        """These were committed."""
        np.add.at(self._counts, list(ids), 1)

    def penalised(self, logits: Floats, by: Reshaping, ahead: Sequence[int]) -> Floats:
        """logits: [vocab_size].  ahead: ids that stand behind the committed ones, if accepted."""
        counts = self._counts
        if ahead:
            counts = counts.copy()
            np.add.at(counts, list(ahead), 1)
        said = counts > 0
        scaled = np.where(logits > 0, logits / by.repetition, logits * by.repetition)
        out = np.where(said | self._in_prompt, scaled, logits)
        penalised: Floats = out - by.frequency * counts - by.presence * said
        return penalised


def reshaped(
    logits: Floats, by: Reshaping, history: History | None, ahead: Sequence[int]
) -> Floats:
    """The logits to choose from: [vocab_size] float64; the same object when nothing changes."""
    if by.looks_back:
        assert history is not None
        logits = history.penalised(logits, by, ahead)
    if by.biases:
        logits = logits.copy()
        for token_id, bias in by.biases:
            logits[token_id] += bias
    return logits


def demand_sound(by: Reshaping, vocab_size: int) -> None:
    """Raise Refused(INVALID_ARGUMENT) naming the first value out of its bounds."""
    demand(
        len(by.biases) <= MAX_BIASES,
        "INVALID_ARGUMENT",
        f"logit_bias has {len(by.biases)} ids, the limit is {MAX_BIASES}",
    )
    for name, value, low, high in (
        ("repetition_penalty", by.repetition, 0.01, 100.0),
        ("frequency_penalty", by.frequency, -100.0, 100.0),
        ("presence_penalty", by.presence, -100.0, 100.0),
        *(("a bias", bias, -100.0, 100.0) for _, bias in by.biases),
    ):
        # Written so that NaN fails.
        why = f"{name} is {value}, it must be at least {low:g} and at most {high:g}"
        demand(low <= value <= high, "INVALID_ARGUMENT", why)
    for token_id, _ in by.biases:
        demand(
            0 <= token_id < vocab_size,
            "INVALID_ARGUMENT",
            f"logit_bias names token {token_id}, ids are below {vocab_size}",
        )


__all__ = ["MAX_BIASES", "UNCHANGED", "History", "Reshaping", "demand_sound", "reshaped"]
