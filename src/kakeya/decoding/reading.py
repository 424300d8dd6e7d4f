"""The prompt's way into the verifier, chunk by chunk, and the scores of its ids where asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kakeya.compute.device import Device
from kakeya.decoding.sampler import score
from kakeya.decoding.sampling import Score
from kakeya.decoding.verify import Aux, prefill
from kakeya.errors import demand
from kakeya.verifying.verifier import Kv, Rows, Verifier

# Rows of one scoring job: a vocabulary of 150,000 takes 4 ms a row.
_SCORED_ROWS = 8


class Reading:
    """Reads one prompt.  num_top: alternatives of every score; None: nothing is scored."""

    def __init__(self, prompt_ids: Sequence[int], num_top: int | None) -> None:
        self._prompt_ids = tuple(prompt_ids)
        self._num_top = num_top
        self._num_read = 0
        self._scores: list[Score] = []

    @property
    def is_scored(self) -> bool:
        return self._num_top is not None

    async def chunk(
        self, device: Device, verifier: Verifier, kv: Kv, ids: Sequence[int], taps: Sequence[int]
    ) -> Aux:
        """Append the next ids of the prompt; their aux.

        Raises Refused(INTERNAL) where scores are asked for and logits are not finite.
        """
        self._num_read += len(ids)
        if self._num_top is None:
            return await device.run(prefill, verifier, kv, ids, taps)
        rows = await device.run(read, verifier, kv, ids, taps)
        assert rows.logits is not None
        following = self._prompt_ids[self._num_read - len(ids) + 1 : self._num_read + 1]
        for at in range(0, len(ids), _SCORED_ROWS):
            behind = following[at : at + _SCORED_ROWS]
            logits = rows.logits[at : at + _SCORED_ROWS]
            self._scores += await device.run(scores_of, logits, behind, self._num_top)
        return rows.aux

    def taken(self) -> tuple[Score, ...]:
        """What was scored since it was last asked for."""
        taken, self._scores = tuple(self._scores), []
        return taken


def read(verifier: Verifier, kv: Kv, ids: Sequence[int], aux_layers: Sequence[int] = ()) -> Rows:
    """One chunk of the prompt, and what follows each of its ids."""
    rows = verifier.read(kv, ids, aux_layers=aux_layers)
    demand(
        not rows.has_nan,
        "INTERNAL",
        f"the verifier's logits before position {kv.length} are not finite; the request ends here",
    )
    return rows


def scores_of(logits: NDArray[np.float32], ids: Sequence[int], num_top: int) -> list[Score]:
    """logits: [rows, vocab_size]; ids[i] is what follows row i."""
    return [score(row, each, num_top) for row, each in zip(logits, ids, strict=True)]


__all__ = ["Reading", "read", "scores_of"]
