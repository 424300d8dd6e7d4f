"""Drafts by a masked-diffusion language model: a block of masks, denoised in a few steps.

A step fills every mask, keeps the most certain ids and masks the others again (MaskGIT, Chang et
al. 2022; LLaDA, Nie et al. 2025, §2.4).  More drafts than one block has are made block by block,
from left to right (LLaDA's semi-autoregressive remasking).  The text before a block is read once
and kept; the block's rows see it and one another (block diffusion, Arriola et al. 2025).
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.draft_model import DraftModel
from kakeya.drafting.prefix_cache import KeptPrefix, PrefixCache
from kakeya.drafting.proposer import Draft, Jobs
from kakeya.drafting.unmasking import most_certain, num_revealed

# A logit that loses to every real one, and whose difference to itself is a number.
_NEVER = np.float32(-1e30)


@dataclass(frozen=True, slots=True)
class Masking:
    """What a checkpoint's config.json says under masked_diffusion.

    block_len: rows of a block, the last id before it included.  The row before a mask says what
    stands there (the shift of the autoregressive model it started from).
    """

    mask_id: int
    block_len: int


@dataclass(slots=True)
class _Account:
    num_steps: int = 0
    num_passes: int = 0
    peak_bytes: int = 0

    def add(self, model: DraftModel, num_rows: int, num_positions: int) -> None:
        self.num_passes += 1
        self.peak_bytes = max(self.peak_bytes, model.activation_bytes(num_rows, num_positions))


class DiffusionProposer:
    """Blocks denoised in at most `num_steps` steps; what it read of a prefix stays."""

    def __init__(self, model: DraftModel, masking: Masking, limits: DraftingLimits) -> None:
        self.model_id = model.model_id
        self.cache = PrefixCache(model, limits)
        self._masking = masking

    def jobs(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Jobs:
        """Read what is new of the text, denoise a block, and so on until there are enough drafts.

        A block of n masks takes min(num_steps, n) steps, which is what is reported.  Spec: P-11.
        """
        text, end = array("I", committed_ids), len(committed_ids) + num_drafts
        account = _Account()
        kept = self.cache.hold(text, num_drafts)
        try:
            while len(text) < end:
                yield from self._read(kept, text, account)
                num_masks = min(self._masking.block_len - 1, end - len(text))
                block = yield from self._denoised(kept, text[-1], num_masks, num_steps, account)
                text.extend(block)
                if len(text) < end:
                    yield
        finally:
            self.cache.release(kept)
        return Draft(
            tuple(text[-num_drafts:]),
            diffusion_steps=account.num_steps,
            forward_passes=account.num_passes,
            peak_activation_bytes=account.peak_bytes,
        )

    def _read(
        self, kept: KeptPrefix, text: array[int], account: _Account
    ) -> Generator[None, None, None]:
        """All but the last id, which is the block's first row."""
        while (done := len(kept.ids)) < len(text) - 1:
            self.cache.read(kept, text)
            account.add(self.cache.model, len(kept.ids) - done, len(kept.ids))
            yield

    def _denoised(
        self, kept: KeptPrefix, last_id: int, num_masks: int, num_steps: int, account: _Account
    ) -> Generator[None, None, list[int]]:
        model, mask_id = self.cache.model, self._masking.mask_id
        rows = [last_id] + [mask_id] * num_masks
        masked = list(range(num_masks))  # of drafts, not of rows
        for count in num_revealed(num_masks, num_steps):
            logits = model.denoise(kept.kv, rows)
            account.num_steps += 1
            account.add(model, len(rows), kept.kv.length + len(rows))
            ids, chances = _guesses(logits[:-1], mask_id)
            revealed = most_certain(chances, masked, count)
            for draft in revealed:
                rows[1 + draft] = ids[draft]
            masked = [draft for draft in masked if draft not in revealed]
            if masked:
                yield
        return rows[1:]


def _guesses(logits: NDArray[np.float32], mask_id: int) -> tuple[list[int], list[float]]:
    """The likeliest id of each row and the log of its chance; never a mask, never nan."""
    logits = np.where(np.isfinite(logits), logits, _NEVER)
    logits[:, mask_id] = _NEVER
    ids = logits.argmax(1)
    spread = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1))
    return [int(each) for each in ids], [-float(each) for each in spread]


__all__ = ["DiffusionProposer", "Masking"]
