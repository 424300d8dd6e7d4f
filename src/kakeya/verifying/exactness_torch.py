"""Whether a block's rows equal one-token steps to the bit, measured on the loaded weights.

Runs once at load.  Products and attention are built to be row-exact, but kernels differ by
machine, so it is looked at and not believed: logits and K/V of blocks of several lengths, at
several lengths of context, against the same tokens one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kakeya.verifying.kv_torch import TorchKv
from kakeya.verifying.model_torch import TorchVerifier
from kakeya.verifying.slots import SLOT_STEP
from kakeya.verifying.verifier import KvPlan

# Where the bits differ: gaps below this are decided again by a one-token step.  float32 logits of
# a block were seen 1e-5 off, bfloat16 ones up to 0.25 (two of their steps between 16 and 32).
GUARD_BOUNDS = {"float32": 1e-3, "bfloat16": 1.0}
# How far beyond what was seen here the bound is put.
_SAFETY = 16

_BLOCK_LENS = (2, 3, 4, 8, 17)
_NUM_STEPS = 8
# The fused attention's own tiles are 512 keys long: where kernels differ, they differ across it.
_PREFIX_LENS = (SLOT_STEP - 3, 508)


@dataclass(frozen=True, slots=True)
class Exactness:
    """is_exact: every bit was equal.  max_difference: the largest one between logits."""

    is_exact: bool
    max_difference: float

    def margin_bound(self, dtype: str) -> float:
        """0 where exact, else a gap that no difference of this size can bridge."""
        if self.is_exact:
            return 0.0
        seen = self.max_difference if np.isfinite(self.max_difference) else 0.0
        return max(GUARD_BOUNDS[dtype], _SAFETY * seen)


def measure_exactness(verifier: TorchVerifier) -> Exactness:
    """Compare blocks with steps across the edge of a slab's step and of an attention tile."""
    max_len = min(verifier.config.max_context_len, max(_PREFIX_LENS) + max(_BLOCK_LENS))
    ids = _probe_ids(max_len, verifier.config.vocab_size)
    prefixes = [n for n in _PREFIX_LENS if n + _NUM_STEPS <= max_len]
    found = [_compare(verifier, ids, prefix_len) for prefix_len in prefixes or [0]]
    return Exactness(
        is_exact=all(each.is_exact for each in found),
        max_difference=max(each.max_difference for each in found),
    )


def _compare(verifier: TorchVerifier, ids: Sequence[int], prefix_len: int) -> Exactness:
    num_steps = min(_NUM_STEPS, len(ids) - prefix_len)
    behind = ids[prefix_len:]
    stepped = _filled(verifier, ids[:prefix_len], len(ids))
    rows = [
        verifier.forward(stepped, [each], want_logits=True).logits for each in behind[:num_steps]
    ]
    steps = np.concatenate([row for row in rows if row is not None])
    kv = _filled(verifier, ids[:prefix_len], len(ids))
    is_exact, difference = True, 0.0
    longest = min(len(behind), verifier.max_block_len)
    for block_len in (n for n in _BLOCK_LENS if n <= longest):
        block = verifier.forward(kv, behind[:block_len], want_logits=True).logits
        assert block is not None
        compared = min(block_len, num_steps)
        difference = max(difference, float(np.abs(block[:compared] - steps[:compared]).max()))
        is_exact &= np.array_equal(block[:compared], steps[:compared])
        is_exact &= block_len < num_steps or _same_kv(kv, stepped, prefix_len)
        verifier.trim(kv, prefix_len)
    return Exactness(is_exact, difference)


def _filled(verifier: TorchVerifier, ids: Sequence[int], max_len: int) -> TorchKv:
    kv = verifier.open(KvPlan("full", sink=0, window=0, max_len=max_len))
    assert isinstance(kv, TorchKv)
    for at in range(0, len(ids), verifier.prefill_chunk_len):
        verifier.prefill(kv, ids[at : at + verifier.prefill_chunk_len])
    return kv


def _same_kv(block: TorchKv, stepped: TorchKv, first: int) -> bool:
    """Whether the slots of the positions stepped from `first` on hold the same bits.

    The block may have written further positions; a ring (a sliding layer's) keeps those apart by
    its slack, so the stepped positions still lie where the steps put them.
    """
    slots = {
        layer_type: torch.from_numpy(kind.slots_between(first, stepped.length))
        for layer_type, kind in stepped.kinds.items()
    }
    pairs = zip(block.slabs, stepped.slabs, stepped.layer_types, strict=True)
    return all(torch.equal(a[:, slots[t]], b[:, slots[t]]) for a, b, t in pairs)


def _probe_ids(count: int, vocab_size: int) -> list[int]:
    """Ids spread over the vocabulary, always the same ones (a step coprime to most sizes)."""
    return [(7919 * i + 13) % vocab_size for i in range(count)]
