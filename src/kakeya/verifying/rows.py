"""From logits to the verifier's choice: ids, margins, and whether they can be believed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kakeya.verifying.verifier import Rows


def choose(
    logits: NDArray[np.float32], *, want_logits: bool, aux: tuple[NDArray[np.generic], ...]
) -> Rows:
    """The argmax of each row, the lowest id on a tie (numpy promises the first occurrence).

    logits: [rows, vocab_size] float32; copied only when the caller wants to keep them.  A row
    with a value that is not finite gets id 0 and margin 0: nothing may be read from it.
    """
    has_nan = not bool(np.isfinite(logits).all())
    if has_nan:
        num_rows = len(logits)
        kept = logits.copy() if want_logits else None
        return Rows((0,) * num_rows, (0.0,) * num_rows, logits=kept, aux=aux, has_nan=True)
    ids = np.argmax(logits, axis=1)
    margins = [_margin(row, int(top)) for row, top in zip(logits, ids, strict=True)]
    return Rows(
        ids=tuple(int(each) for each in ids),
        margins=tuple(margins),
        logits=logits.copy() if want_logits else None,
        aux=aux,
    )


def _margin(row: NDArray[np.float32], top: int) -> float:
    """How far the best logit is above the second best; 0 on a tie."""
    others = [part.max() for part in (row[:top], row[top + 1 :]) if len(part)]
    return float(row[top]) - float(max(others))
