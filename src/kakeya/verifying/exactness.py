"""Whether a block's rows equal one-token steps to the bit, measured on the loaded weights.

Runs once at load.  Products and attention are built to be row-exact, but kernels differ by
machine, so it is looked at and not believed: logits and K/V of blocks of several lengths, at
several lengths of context, against the same tokens one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.slots import SLOT_STEP
from kakeya.verifying.verifier import Kv, KvPlan, Verifier

# Where the bits differ: gaps below this are decided again by a one-token step.  float32 logits of
# a block were seen 1e-5 off, bfloat16 ones up to 0.25 (two of their steps between 16 and 32);
# float16 has three bits more.
GUARD_BOUNDS = {"float32": 1e-3, "float16": 0.125, "bfloat16": 1.0}
# How far beyond what was seen here the bound is put.
_SAFETY = 16

BLOCK_LENS = (2, 3, 4, 8, 17)
_NUM_STEPS = 8
# Open at once while a verifier is measured: one is stepped through, one gets the blocks.
NUM_PROBES = 2
# The fused attention's own tiles are 512 keys long: where kernels differ, they differ across it.
_PREFIX_LENS = (SLOT_STEP - 3, 508)


class ComparableKv(Kv, Protocol):
    def same_from(self, other: Any, first: int) -> bool:
        """Whether the positions that `other` holds from `first` on are the same bits here."""
        ...


class Measured(Verifier, Protocol):
    """What is measured: a verifier that says its shape and the rows one pass may have."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def max_block_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LengthExactness:
    """What was seen for blocks of one length, over all lengths of context."""

    block_len: int
    is_exact: bool
    max_difference: float


@dataclass(frozen=True, slots=True)
class Exactness:
    """is_exact: every bit was equal.  max_difference: the largest one between logits."""

    is_exact: bool
    max_difference: float
    by_length: tuple[LengthExactness, ...] = ()

    def margin_bound(self, dtype: str) -> float:
        """0 where exact, else a gap that no difference of this size can bridge."""
        if self.is_exact:
            return 0.0
        seen = self.max_difference if np.isfinite(self.max_difference) else 0.0
        return max(GUARD_BOUNDS[dtype], _SAFETY * seen)


def measure_exactness(verifier: Measured, seed: int = 0) -> Exactness:
    """Compare blocks with steps across the edge of a slab's step and of an attention tile.

    Another seed compares other tokens.
    """
    max_len = probe_plan(verifier.config).max_len
    ids = _probe_ids(max_len, verifier.config.vocab_size, seed)
    prefixes = [n for n in _PREFIX_LENS if n + _NUM_STEPS <= max_len]
    found = [each for prefix_len in prefixes or [0] for each in _compare(verifier, ids, prefix_len)]
    return Exactness(
        is_exact=all(each.is_exact for each in found),
        max_difference=max((each.max_difference for each in found), default=0.0),
        by_length=tuple(
            _together([each for each in found if each.block_len == block_len])
            for block_len in sorted({each.block_len for each in found})
        ),
    )


def probe_plan(config: ModelConfig) -> KvPlan:
    """The K/V of which NUM_PROBES are open at once."""
    max_len = min(config.max_context_len, max(_PREFIX_LENS) + max(BLOCK_LENS))
    return KvPlan("full", sink=0, window=0, max_len=max_len)


def _together(found: Sequence[LengthExactness]) -> LengthExactness:
    return LengthExactness(
        found[0].block_len,
        is_exact=all(each.is_exact for each in found),
        max_difference=max(each.max_difference for each in found),
    )


def _compare(verifier: Measured, ids: Sequence[int], prefix_len: int) -> Iterator[LengthExactness]:
    num_steps = min(_NUM_STEPS, len(ids) - prefix_len)
    behind = ids[prefix_len:]
    stepped = _filled(verifier, ids[:prefix_len])
    rows = [
        verifier.forward(stepped, [each], want_logits=True).logits for each in behind[:num_steps]
    ]
    steps = np.concatenate([row for row in rows if row is not None])
    kv = _filled(verifier, ids[:prefix_len])
    longest = min(len(behind), verifier.max_block_len)
    for block_len in (n for n in BLOCK_LENS if n <= longest):
        block = verifier.forward(kv, behind[:block_len], want_logits=True).logits
        assert block is not None
        compared = min(block_len, num_steps)
        is_exact = np.array_equal(block[:compared], steps[:compared])
        is_exact &= block_len < num_steps or kv.same_from(stepped, prefix_len)
        difference = float(np.abs(block[:compared] - steps[:compared]).max())
        yield LengthExactness(block_len, is_exact, difference)
        verifier.trim(kv, prefix_len)


def _filled(verifier: Measured, ids: Sequence[int]) -> ComparableKv:
    kv: Any = verifier.open(probe_plan(verifier.config))
    for at in range(0, len(ids), verifier.prefill_chunk_len):
        verifier.prefill(kv, ids[at : at + verifier.prefill_chunk_len])
    comparable: ComparableKv = kv
    return comparable


def _probe_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Ids spread over the vocabulary, the same for a seed (a step coprime to most sizes)."""
    return [(7919 * i + 4099 * seed + 13) % vocab_size for i in range(count)]
