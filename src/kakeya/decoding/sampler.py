"""How one generation chooses: its sampling, what it has said so far, and the scores it reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kakeya.decoding.penalties import History
from kakeya.decoding.sampling import Choices, Sampling, Score, choose
from kakeya.verifying.verifier import Rows


@dataclass(frozen=True, slots=True)
class Sampler:
    """history: there where penalties need it.  num_top: alternatives to report; None: no scores."""

    sampling: Sampling
    history: History | None = None
    num_top: int | None = None

    @property
    def needs_logits(self) -> bool:
        return self.sampling.needs_logits or self.num_top is not None

    def choose(
        self, rows: Rows, *, first_position: int, bound: float, ahead: Sequence[int] = ()
    ) -> Choices:
        """As sampling.choose, with scores where they are asked for."""
        choices = choose(
            rows,
            self.sampling,
            first_position=first_position,
            bound=bound,
            history=self.history,
            ahead=ahead,
        )
        if self.num_top is None:
            return choices
        assert rows.logits is not None
        scores = [
            score(row, token_id, self.num_top)
            for row, token_id in zip(rows.logits, choices.ids, strict=True)
        ]
        return replace(choices, scores=tuple(scores))

    def commit(self, ids: Sequence[int]) -> None:
        if self.history is not None:
            self.history.add(ids)


def sampler_of(
    sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int, num_top: int | None
) -> Sampler:
    looks_back = sampling.reshaping.looks_back
    history = History(prompt_ids, vocab_size) if looks_back else None
    return Sampler(sampling, history, num_top)


def score(logits: NDArray[np.float32], token_id: int, num_top: int) -> Score:
    """The model's own log probability of an id and of the `num_top` best: [vocab_size] logits.

    Of the logits as they come, whatever temperature, penalties and filters did to the choice.
    """
    exact = logits.astype(np.float64)
    shifted = exact - exact.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    most = min(num_top, len(exact))
    best = np.argpartition(-exact, most - 1)[:most] if most else np.array([], dtype=np.int64)
    # The best first, ties by the lowest id.
    ranked = sorted((int(each) for each in best), key=lambda each: (-exact[each], each))
    return Score(float(logprobs[token_id]), tuple((i, float(logprobs[i])) for i in ranked))


__all__ = ["Sampler", "sampler_of", "score"]
