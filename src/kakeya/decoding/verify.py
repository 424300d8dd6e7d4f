"""One block on the verifier's thread: a forward pass, what is accepted of it, and the doubts.

Runs as one job of the device; the id it commits for a position is the one the one-token path
would have chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kakeya.decoding.sampler import Sampler
from kakeya.decoding.sampling import Choices, Score
from kakeya.errors import demand
from kakeya.verifying.accept import first_doubtful, num_agreeing
from kakeya.verifying.verifier import Kv, Verifier


@dataclass(frozen=True, slots=True)
class Verified:
    """ids: what is committed, the accepted drafts first; the last one is the next bonus."""

    ids: tuple[int, ...]
    num_accepted: int
    # Drafts whose acceptance was decided; less than drafted where a doubt ended the block.
    num_decided: int
    margin_rechecks: int = 0
    nan_rechecks: int = 0
    # One an id, where they were asked for.
    scores: tuple[Score, ...] = ()


def verify_block(
    verifier: Verifier, kv: Kv, bonus: int, drafts: Sequence[int], sampler: Sampler
) -> Verified:
    """Commit at least one id after `bonus`; leaves all but the last committed id in `kv`.

    Raises Refused(INTERNAL) when the logits of a one-token pass are not finite.
    """
    start = kv.length
    fed = (bonus, *drafts)
    rows = verifier.forward(kv, fed, want_logits=sampler.needs_logits)
    if rows.has_nan and drafts:
        # Perhaps only the drafted rows are not finite, and drafts may cost speed only.
        verifier.trim(kv, start)
        return _alone(verifier, kv, bonus, sampler)
    _demand_finite(rows.has_nan, start)
    bound = verifier.margin_bound if drafts else 0.0
    choices = sampler.choose(rows, first_position=start + 1, bound=bound, ahead=drafts)
    accepted = num_agreeing(drafts, choices.ids)
    doubtful = first_doubtful(choices.margins, accepted, bound) if drafts else None
    if doubtful is not None:
        verifier.trim(kv, start + doubtful)
        again = _decide_again(verifier, kv, fed, doubtful, sampler)
        return replace(again, scores=choices.scores[:doubtful] + again.scores)
    if accepted < len(drafts):
        verifier.trim(kv, start + 1 + accepted)
    kept = slice(accepted + 1)
    return Verified(choices.ids[kept], accepted, len(drafts), scores=choices.scores[kept])


def decide_one(
    verifier: Verifier, kv: Kv, token_id: int, sampler: Sampler, ahead: Sequence[int]
) -> Choices:
    """What follows `token_id`, by a one-token pass.  Raises as verify_block does.

    ahead: the ids behind the committed ones, `token_id` the last of them.
    """
    return _one(verifier, kv, token_id, sampler, ahead)


def prefill(verifier: Verifier, kv: Kv, ids: Sequence[int]) -> None:
    """One chunk of the prompt."""
    verifier.prefill(kv, ids)


def _alone(verifier: Verifier, kv: Kv, bonus: int, sampler: Sampler) -> Verified:
    own = _one(verifier, kv, bonus, sampler, ())
    return Verified(own.ids, 0, 0, nan_rechecks=1, scores=own.scores)


def _decide_again(
    verifier: Verifier, kv: Kv, fed: Sequence[int], row: int, sampler: Sampler
) -> Verified:
    """The block ends at `row`, whose choice a one-token pass makes.  kv holds the rows before.

    scores: of that choice only.
    """
    ahead = fed[1 : row + 1]
    own = _one(verifier, kv, fed[row], sampler, ahead)
    agrees = row + 1 < len(fed) and own.ids[0] == fed[row + 1]
    decided = min(row + 1, len(fed) - 1)
    ids = (*ahead, *own.ids)
    return Verified(ids, row + int(agrees), decided, margin_rechecks=1, scores=own.scores)


def _one(
    verifier: Verifier, kv: Kv, token_id: int, sampler: Sampler, ahead: Sequence[int]
) -> Choices:
    start = kv.length
    rows = verifier.forward(kv, (token_id,), want_logits=sampler.needs_logits)
    _demand_finite(rows.has_nan, start)
    return sampler.choose(rows, first_position=start + 1, bound=0.0, ahead=ahead)


def _demand_finite(has_nan: bool, position: int) -> None:
    demand(
        not has_nan,
        "INTERNAL",
        f"the verifier's logits behind position {position} are not finite; the request ends here",
    )


__all__ = ["Verified", "decide_one", "prefill", "verify_block"]
