"""A small real drafter in numpy: what it drafts depends on every value and position it was given.

Its arithmetic goes row by row, so that the same rows make the same bits however they were cut.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kakeya.drafting.drafter import BlockAsk, DrafterShape, LayerBank, RestorePlan
from kakeya.drafting.proposer import Draft
from kakeya.wire.tensor import WireArray

SHAPE = DrafterShape(
    vocab_size=251,
    num_aux=3,
    hidden_size=8,
    max_context_len=400,
    max_num_drafts=16,
    max_extend_len=16,
)
NUM_KV_HEADS, HEAD_DIM = 2, 4
CAPACITY_STEP = 64  # positions


class NumpyContext:
    """rows: [capacity, hidden_size], float64; what lies behind the session's length is noise."""

    def __init__(self, capacity: int, hidden_size: int) -> None:
        self.rows = np.full((capacity, hidden_size), np.nan)

    @property
    def resident_bytes(self) -> int:
        return self.rows.nbytes


@dataclass(eq=False)
class NumpyDrafter:
    """Counts its jobs by name; `before_job(name)` may wait or raise."""

    model_id: str = "numpy"
    shape: DrafterShape = SHAPE
    num_layers: int = 2
    before_job: Callable[[str], None] = lambda name: None
    jobs: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def context_bytes(self, context_len: int) -> int:
        return self._capacity(context_len) * self.shape.hidden_size * 8

    def restore(
        self, plan: RestorePlan, context: NumpyContext | None, context_len: int
    ) -> Iterator[LayerBank | None]:
        """A bank a layer of the evicted positions; the first step only works."""
        evicted = np.arange(plan.sink, max(plan.sink, len(plan.prompt_ids) - plan.window))
        for layer in range(self.num_layers):
            self._job("restore")
            if not len(evicted) or (plan.omits_full_layers and layer % 2):
                continue
            yield None
            self._job("restore")
            ids = np.array(plan.prompt_ids)[evicted]
            yield LayerBank(layer, *(self._bank(ids, evicted, layer, kv, context) for kv in (1, 2)))

    def extend(
        self, context: NumpyContext | None, context_len: int, aux: Sequence[WireArray]
    ) -> NumpyContext:
        self._job("extend")
        assert len(aux) == self.shape.num_aux
        rows = len(aux[0].bits)
        assert 1 <= rows <= self.shape.max_extend_len
        end = context_len + rows
        capacity = self._capacity(end)
        if context is None or capacity > len(context.rows):
            grown = NumpyContext(capacity, self.shape.hidden_size)
            if context is not None:
                grown.rows[:context_len] = context.rows[:context_len]
            context = grown
        context.rows[context_len:end] = mixed(aux, context_len)
        return context

    def draft(
        self, context: NumpyContext, context_len: int, bonus_id: int, num_drafts: int
    ) -> Draft:
        self._job("draft")
        # Noise behind the length: whoever looks at it drafts something else.
        context.rows[context_len : context_len + 1 + num_drafts] = -1.0
        seen = zlib.crc32(context.rows[:context_len].tobytes(), bonus_id)
        ids = []
        for number in range(num_drafts):
            seen = zlib.crc32(bytes([number]), seen)
            ids.append(seen % self.shape.vocab_size)
        return Draft(tuple(ids), forward_passes=1, peak_activation_bytes=num_drafts * 8)

    def draft_together(self, asks: Sequence[BlockAsk]) -> list[Draft]:
        self._job(f"draft {len(asks)}")
        return [
            self.draft(each.context, each.context_len, each.bonus_id, each.num_drafts)  # type: ignore[arg-type]
            for each in asks
        ]

    def _job(self, name: str) -> None:
        self.threads.add(threading.get_ident())
        self.jobs.append(name)
        self.before_job(name)

    def _capacity(self, context_len: int) -> int:
        return -(-context_len // CAPACITY_STEP) * CAPACITY_STEP

    def _bank(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        layer: int,
        kv: int,
        context: NumpyContext | None,
    ) -> WireArray:
        shape = (1, len(ids), NUM_KV_HEADS, HEAD_DIM)
        base = (ids * 31 + positions * 7 + layer * 3 + kv).astype(np.float32)
        if context is not None:
            base = base + context.rows[positions].sum(axis=1).astype(np.float32)
        spread = np.arange(NUM_KV_HEADS * HEAD_DIM, dtype=np.float32)
        return WireArray("float32", (base[:, None] + spread).reshape(shape))


def mixed(aux: Sequence[WireArray], first: int) -> NDArray[np.float64]:
    """[rows, hidden_size]: every value of every layer counts, and so does its position."""
    made = np.zeros(aux[0].bits.shape)
    for index, each in enumerate(aux):
        values = numbers(each)
        made += values * (index + 1.5) + values * values * 0.37
    positions = np.arange(first, first + len(made), dtype=np.float64)[:, None]
    return made * (1.0 + 0.01 * positions) + positions


def numbers(array: WireArray) -> NDArray[np.float64]:
    if array.dtype == "bfloat16":
        return (array.bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.bits.astype(np.float64)
