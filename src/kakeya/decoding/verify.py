"""One block on the verifier's thread: a forward pass, what is accepted of it, and the doubts.

Runs as one job of the device; the id it commits for a position is the one the one-token path
would have chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kakeya.decoding.sampler import Sampler
from kakeya.decoding.sampling import Score
from kakeya.errors import demand
from kakeya.verifying.accept import first_doubtful, num_agreeing
from kakeya.verifying.verifier import Kv, Verifier

# One [rows, hidden_size] array per tapped layer: float32, or the uint16 bits of bfloat16.
Aux = tuple[NDArray[np.generic], ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """ids: what is committed, the accepted drafts first; the last one is the next bonus.

    num_decided: drafts whose acceptance was decided; less than drafted where a doubt ended the
    block.  scores: one an id, where they were asked for.  aux: [len(ids), hidden_size] for each
    layer asked for: the bonus's row, then those of the committed drafts.
    """

    ids: tuple[int, ...]
    num_accepted: int
    num_decided: int
    margin_rechecks: int = 0
    nan_rechecks: int = 0
    scores: tuple[Score, ...] = ()
    aux: Aux = ()


def verify_block(
    verifier: Verifier,
    kv: Kv,
    bonus: int,
    drafts: Sequence[int],
    sampler: Sampler,
    aux_layers: Sequence[int] = (),
) -> Verified:
    """Commit at least one id after `bonus`; leaves all but the last committed id in `kv`.

    Raises Refused(INTERNAL) when the logits of a one-token pass are not finite.
    """
    start = kv.length
    fed = (bonus, *drafts)
    rows = verifier.forward(kv, fed, want_logits=sampler.needs_logits, aux_layers=aux_layers)
    if rows.has_nan and drafts:
        # Perhaps only the drafted rows are not finite, and drafts may cost speed only.
        verifier.trim(kv, start)
        own = decide_one(verifier, kv, bonus, sampler, (), aux_layers)
        return replace(own, nan_rechecks=1)
    _demand_finite(rows.has_nan, start)
    bound = verifier.margin_bound if drafts else 0.0
    choices = sampler.choose(rows, first_position=start + 1, bound=bound, ahead=drafts)
    accepted = num_agreeing(drafts, choices.ids)
    doubtful = first_doubtful(choices.margins, accepted, bound) if drafts else None
    if doubtful is not None:
        verifier.trim(kv, start + doubtful)
        again = _decide_again(verifier, kv, fed, doubtful, sampler, aux_layers)
        before = tuple(layer[:doubtful] for layer in rows.aux)
        return replace(
            again, scores=choices.scores[:doubtful] + again.scores, aux=_joined(before, again.aux)
        )
    if accepted < len(drafts):
        verifier.trim(kv, start + 1 + accepted)
    kept = slice(accepted + 1)
    return Verified(
        choices.ids[kept],
        accepted,
        len(drafts),
        scores=choices.scores[kept],
        aux=tuple(layer[kept] for layer in rows.aux),
    )


def decide_one(
    verifier: Verifier,
    kv: Kv,
    token_id: int,
    sampler: Sampler,
    ahead: Sequence[int],
    aux_layers: Sequence[int] = (),
) -> Verified:
    """The one id that follows `token_id`, by a one-token pass.  Raises as verify_block does.

    ahead: the ids behind the committed ones, `token_id` the last of them.
    """
    start = kv.length
    rows = verifier.forward(
        kv, (token_id,), want_logits=sampler.needs_logits, aux_layers=aux_layers
    )
    _demand_finite(rows.has_nan, start)
    choices = sampler.choose(rows, first_position=start + 1, bound=0.0, ahead=ahead)
    return Verified(choices.ids, 0, 0, scores=choices.scores, aux=rows.aux)


def one_by_one(own: Sequence[Verified], *, num_drafts: int) -> Verified:
    """What one-token passes over a draft committed: all ids but the last one were drafted."""
    aux = own[0].aux
    for each in own[1:]:
        aux = _joined(aux, each.aux)
    return Verified(
        tuple(each.ids[0] for each in own),
        len(own) - 1,
        num_drafts,
        scores=tuple(score for each in own for score in each.scores),
        aux=aux,
    )


def prefill(verifier: Verifier, kv: Kv, ids: Sequence[int], aux_layers: Sequence[int] = ()) -> Aux:
    """One chunk of the prompt, and its aux."""
    return verifier.prefill(kv, ids, aux_layers=aux_layers)


def _decide_again(
    verifier: Verifier,
    kv: Kv,
    fed: Sequence[int],
    row: int,
    sampler: Sampler,
    aux_layers: Sequence[int],
) -> Verified:
    """The block ends at `row`, whose choice a one-token pass makes.  kv holds the rows before.

    scores and aux: of that row only.
    """
    ahead = fed[1 : row + 1]
    own = decide_one(verifier, kv, fed[row], sampler, ahead, aux_layers)
    agrees = row + 1 < len(fed) and own.ids[0] == fed[row + 1]
    return replace(
        own,
        ids=(*ahead, *own.ids),
        num_accepted=row + int(agrees),
        num_decided=min(row + 1, len(fed) - 1),
        margin_rechecks=1,
    )


def _joined(first: Aux, second: Aux) -> Aux:
    """The rows of `first`, then those of `second`, layer by layer."""
    return tuple(np.concatenate(both) for both in zip(first, second, strict=True))


def _demand_finite(has_nan: bool, position: int) -> None:
    demand(
        not has_nan,
        "INTERNAL",
        f"the verifier's logits behind position {position} are not finite; the request ends here",
    )


__all__ = ["Aux", "Verified", "decide_one", "one_by_one", "prefill", "verify_block"]
