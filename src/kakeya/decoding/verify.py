"""One block on the verifier's thread: a forward pass, what is accepted of it, and the doubts.

Runs as one job of the device; the id it commits for a position is the one the one-token path
would have chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kakeya.decoding.sampling import Choices, Sampling, choose
from kakeya.errors import demand
from kakeya.verifying.accept import first_doubtful, num_agreeing
from kakeya.verifying.verifier import Kv, Verifier

# One [rows, hidden_size] array per tapped layer: float32, or the uint16 bits of bfloat16.
Aux = tuple[NDArray[np.generic], ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """ids: what is committed, the accepted drafts first; the last one is the next bonus."""

    ids: tuple[int, ...]
    num_accepted: int
    # Drafts whose acceptance was decided; less than drafted where a doubt ended the block.
    num_decided: int
    margin_rechecks: int = 0
    nan_rechecks: int = 0
    # One [len(ids), hidden_size] array per layer asked for: the bonus's row, then those of the
    # committed drafts.
    aux: Aux = ()


def verify_block(
    verifier: Verifier,
    kv: Kv,
    bonus: int,
    drafts: Sequence[int],
    sampling: Sampling,
    aux_layers: Sequence[int] = (),
) -> Verified:
    """Commit at least one id after `bonus`; leaves all but the last committed id in `kv`.

    Raises Refused(INTERNAL) when the logits of a one-token pass are not finite.
    """
    start = kv.length
    fed = (bonus, *drafts)
    rows = verifier.forward(kv, fed, want_logits=not sampling.is_greedy, aux_layers=aux_layers)
    if rows.has_nan and drafts:
        # Perhaps only the drafted rows are not finite, and drafts may cost speed only.
        verifier.trim(kv, start)
        return _alone(verifier, kv, bonus, sampling, aux_layers)
    _demand_finite(rows.has_nan, start)
    bound = verifier.margin_bound if drafts else 0.0
    choices = choose(rows, sampling, first_position=start + 1, bound=bound)
    accepted = num_agreeing(drafts, choices.ids)
    doubtful = first_doubtful(choices.margins, accepted, bound) if drafts else None
    if doubtful is not None:
        verifier.trim(kv, start + doubtful)
        again = _decide_again(verifier, kv, fed, doubtful, sampling, aux_layers)
        return replace(again, aux=_joined(rows.aux, doubtful, again.aux))
    if accepted < len(drafts):
        verifier.trim(kv, start + 1 + accepted)
    aux = tuple(layer[: accepted + 1] for layer in rows.aux)
    return Verified(choices.ids[: accepted + 1], accepted, len(drafts), aux=aux)


def decide_one(
    verifier: Verifier, kv: Kv, token_id: int, sampling: Sampling, aux_layers: Sequence[int] = ()
) -> tuple[int, Aux]:
    """What follows `token_id`, by a one-token pass, and its aux.  Raises as verify_block does."""
    own, aux = _one(verifier, kv, token_id, sampling, aux_layers)
    return own.ids[0], aux


def prefill(verifier: Verifier, kv: Kv, ids: Sequence[int], aux_layers: Sequence[int] = ()) -> Aux:
    """One chunk of the prompt, and its aux."""
    return verifier.prefill(kv, ids, aux_layers=aux_layers)


def joined(first: Aux, second: Aux) -> Aux:
    """The rows of `first`, then those of `second`, layer by layer."""
    return tuple(np.concatenate(both) for both in zip(first, second, strict=True))


def _joined(rows: Aux, num_rows: int, last: Aux) -> Aux:
    return joined(tuple(layer[:num_rows] for layer in rows), last)


def _alone(
    verifier: Verifier, kv: Kv, bonus: int, sampling: Sampling, aux_layers: Sequence[int]
) -> Verified:
    own, aux = _one(verifier, kv, bonus, sampling, aux_layers)
    return Verified(own.ids[:1], 0, 0, nan_rechecks=1, aux=aux)


def _decide_again(
    verifier: Verifier,
    kv: Kv,
    fed: Sequence[int],
    row: int,
    sampling: Sampling,
    aux_layers: Sequence[int],
) -> Verified:
    """The block ends at `row`, whose choice a one-token pass makes.  kv holds the rows before."""
    choices, aux = _one(verifier, kv, fed[row], sampling, aux_layers)
    own = choices.ids[0]
    agrees = row + 1 < len(fed) and own == fed[row + 1]
    decided = min(row + 1, len(fed) - 1)
    ids = (*fed[1 : row + 1], own)
    return Verified(ids, row + int(agrees), decided, margin_rechecks=1, aux=aux)


def _one(
    verifier: Verifier, kv: Kv, token_id: int, sampling: Sampling, aux_layers: Sequence[int]
) -> tuple[Choices, Aux]:
    start = kv.length
    rows = verifier.forward(
        kv, (token_id,), want_logits=not sampling.is_greedy, aux_layers=aux_layers
    )
    _demand_finite(rows.has_nan, start)
    return choose(rows, sampling, first_position=start + 1, bound=0.0), rows.aux


def _demand_finite(has_nan: bool, position: int) -> None:
    demand(
        not has_nan,
        "INTERNAL",
        f"the verifier's logits behind position {position} are not finite; the request ends here",
    )


__all__ = ["Aux", "Verified", "decide_one", "joined", "prefill", "verify_block"]
