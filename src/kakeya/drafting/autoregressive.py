"""Drafts by a small model of the verifier's family: its own likeliest ids, one pass each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.draft_model import DraftModel
from kakeya.drafting.prefix_cache import PrefixCache
from kakeya.drafting.proposer import Draft, Jobs


class AutoregressiveProposer:
    """Greedy drafts; what it read of a prefix stays for the next call."""

    def __init__(self, model: DraftModel, limits: DraftingLimits) -> None:
        self.model_id = model.model_id
        self.cache = PrefixCache(model, limits)

    def jobs(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Jobs:
        """Read what is new of the prefix, then one pass a draft; `num_steps` is ignored.

        The last draft is not read.  Spec: P-09, P-10.
        """
        text, cache = array("I", committed_ids), self.cache
        end, num_passes, peak_bytes = len(text) + num_drafts, 0, 0
        kept = cache.hold(text, num_drafts)
        try:
            while len(text) < end:
                done = len(kept.ids)
                if len(text) - done <= cache.model.piece_len:
                    text.append(cache.next_id(kept, text[done:]))
                else:
                    cache.read(kept, text)
                num_passes += 1
                used_bytes = cache.model.activation_bytes(len(kept.ids) - done, len(kept.ids))
                peak_bytes = max(peak_bytes, used_bytes)
                if len(text) < end:
                    yield
        finally:
            cache.release(kept)
        return Draft(
            tuple(text[-num_drafts:]),
            diffusion_steps=0,
            forward_passes=num_passes,
            peak_activation_bytes=peak_bytes,
        )


__all__ = ["AutoregressiveProposer"]
