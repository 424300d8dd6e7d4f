"""The verifier's own choice from its logits: the argmax, or one draw with noise of its own.

Gumbel-max with noise keyed by (seed, absolute position): for one seed the text depends neither
on block lengths nor on who drafted.  Pure but for the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.decoding import penalties
from kakeya.decoding.penalties import UNCHANGED, History, Reshaping, reshaped
from kakeya.errors import demand
from kakeya.verifying.verifier import Rows

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep all candidates.

    reshaping comes first, whatever the temperature.  The filters are applied in this order: top_k,
    top_p, min_p; all to the probabilities at this temperature.  seed: 0 … 2^64-1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    reshaping: Reshaping = UNCHANGED

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def needs_logits(self) -> bool:
        """Whether the ids and margins of a forward pass are not enough."""
        return not self.is_greedy or self.reshaping.changes


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Score:
    """An id's log probability (natural), and the best ids with theirs, the best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """The chosen id of every row, and how much the logits may move before it changes.

    scores: of every row, where they were asked for; else empty.
    """

    ids: tuple[int, ...]
    margins: tuple[float, ...]
    scores: tuple[Score, ...] = ()


def demand_sound(sampling: Sampling, vocab_size: int) -> None:
    """Raise Refused(INVALID_ARGUMENT) naming the first field out of its bounds."""
    penalties.demand_sound(sampling.reshaping, vocab_size)
    for name, value, low, high in (
        ("temperature", sampling.temperature, 0.0, 100.0),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, 1 << 31),
        ("seed", sampling.seed, 0, (1 << 64) - 1),
    ):
        # Written so that NaN fails.
        holds = low <= value <= high and not (name == "top_p" and value == 0)
        above = "above 0" if name == "top_p" else f"at least {low:g}"
        demand(
            holds, "INVALID_ARGUMENT", f"{name} is {value}, it must be {above} and at most {high}"
        )


def choose(
    rows: Rows,
    sampling: Sampling,
    *,
    first_position: int,
    bound: float,
    history: History | None = None,
    ahead: Sequence[int] = (),
) -> Choices:
    """The choice of every row; row i is about the token at `first_position` + i.

    bound: how far two logits may drift apart between the block path and the one-token path; a
    choice that such a drift could change gets a margin below it.  history, ahead: for penalties;
    the last len(rows) - 1 ids of `ahead` stand before the rows 1 …, the others before all of them.
    Needs rows.logits where sampling.needs_logits.
    """
    if not sampling.needs_logits:
        return Choices(rows.ids, rows.margins)
    assert rows.logits is not None
    by, drawn = sampling.reshaping, []
    first_len = len(ahead) - (len(rows.ids) - 1)
    for i, row in enumerate(rows.logits):
        logits = reshaped(row.astype(np.float64), by, history, ahead[: first_len + i])
        if sampling.is_greedy:
            token_id, margin = _best(logits)
        else:
            token_id, margin = _draw(logits, sampling, first_position + i, bound * by.stretch)
        drawn.append((token_id, margin / by.stretch))
    return Choices(tuple(each for each, _ in drawn), tuple(margin for _, margin in drawn))


def gumbel_noise(seed: int, position: int, size: int) -> Floats:
    """Standard Gumbel noise for one position: [size] float64, the same wherever it is asked."""
    bits = np.random.Philox(key=np.array([seed, position], dtype=np.uint64)).random_raw(size)
    # The upper 53 bits, moved by half a step so that neither 0 nor 1 comes out.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def _best(logits: Floats) -> tuple[int, float]:
    """The lowest id of the best, and how far it is above the others."""
    best = int(np.argmax(logits))
    rivals = logits.copy()
    rivals[best] = -np.inf
    return best, float(logits[best] - rivals.max())


def _draw(logits: Floats, sampling: Sampling, position: int, bound: float) -> tuple[int, float]:
    noise = gumbel_noise(sampling.seed, position, len(logits)) * sampling.temperature
    scores = logits + noise  # in logit units: divided by the temperature they would rank the same
    kept = _candidates(logits, sampling, slack=0.0)
    chosen = int(np.argmax(np.where(kept, scores, -np.inf)))
    if bound == 0:
        return chosen, np.inf
    # Who might be a candidate on the other path competes; who might not be one cannot be sure.
    maybe = _candidates(logits, sampling, slack=bound)
    surely = _candidates(logits, sampling, slack=-bound)
    if not surely[chosen]:
        return chosen, 0.0
    rivals = np.where(maybe, scores, -np.inf)
    rivals[chosen] = -np.inf
    return chosen, max(0.0, float(scores[chosen] - rivals.max(initial=-np.inf)))


def _candidates(logits: Floats, sampling: Sampling, *, slack: float) -> Mask:
    """Which ids pass the filters with `slack` logits in their favour (below 0: against them)."""
    kept = np.ones(len(logits), dtype=np.bool_)
    if 0 < sampling.top_k < len(logits):
        kept &= _in_top_k(logits, sampling.top_k, slack)
    if sampling.top_p < 1:
        kept &= _in_top_p(np.where(kept, logits, -np.inf), sampling, slack)
    if sampling.min_p > 0:
        floor = logits.max() + sampling.temperature * np.log(sampling.min_p)
        kept &= logits >= floor - slack
    if slack >= 0:
        kept[int(np.argmax(logits))] = True  # the best always passes
    return kept


def _in_top_k(logits: Floats, top_k: int, slack: float) -> Mask:
    kth, next_best = np.partition(logits, (-top_k - 1, -top_k))[[-top_k, -top_k - 1]]
    edge = kth if slack >= 0 else next_best
    above: Mask = logits > edge - slack
    if slack:
        return above
    # Ties at the edge go to the lowest ids, as everywhere.
    at_edge = np.flatnonzero(logits == kth)[: top_k - int(above.sum())]
    above[at_edge] = True
    return above


def _in_top_p(logits: Floats, sampling: Sampling, slack: float) -> Mask:
    """Ids with less than top_p of the probability ahead of them."""
    order = np.argsort(-logits, kind="stable")
    ranked = logits[order]
    weights = np.exp((ranked - ranked[0]) / sampling.temperature)
    ahead = np.concatenate(([0.0], np.cumsum(weights)))
    # With slack, those within it do not count as ahead (below 0 they do, but for the id itself),
    # and the share ahead may be off by as much.
    mass = ahead[:-1]
    if slack:
        mass = ahead[np.searchsorted(-ranked, -(ranked + slack), side="left")]
        mass = mass - weights if slack < 0 else mass
    share = mass / ahead[-1] * np.exp(-2 * slack / sampling.temperature)
    kept = np.zeros(len(logits), dtype=np.bool_)
    kept[order] = share < sampling.top_p
    return kept


__all__ = ["GREEDY", "Choices", "Sampling", "Score", "choose", "demand_sound", "gumbel_noise"]
