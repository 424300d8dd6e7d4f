"""How much of a drafted block the verifier agrees with.  Pure.

Row i of a block is the verifier's word on what follows input i: row 0 on the first draft, the
last row on what follows all of them.
"""

from __future__ import annotations

from collections.abc import Sequence


def num_agreeing(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """Length of the longest prefix of `drafts` that equals the verifier's own choices.

    choices: one more than drafts; choices[num_agreeing(…)] is the verifier's next id.  Spec: D-01.
    """
    assert len(choices) == len(drafts) + 1
    for i, draft in enumerate(drafts):
        if draft != choices[i]:
            return i
    return len(drafts)


def first_doubtful(margins: Sequence[float], num_accepted: int, bound: float) -> int | None:
    """The first row in use whose gap is below `bound`, or None.

    Rows 0 … num_accepted are in use: the accepted drafts' and the one behind them.  Rows past it
    are about a text that is not going to be.  Spec: D-05.
    """
    for i in range(num_accepted + 1):
        if margins[i] < bound:
            return i
    return None


__all__ = ["first_doubtful", "num_agreeing"]
