"""The K/V of one generation: one slab per layer, and what a pass writes and looks at.

A slab is [2 * num_kv_heads, num_slots, head_dim]: K's heads, then V's, in one piece, so that a
layer's rows are written by one copy.  Owned by the verifier's thread.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kakeya.verifying.model_config import LayerShape
from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.window import Reach, SlotMap, hidden_slots, reach_of, slot_map

# Slabs are read in whole multiples of this many slots, the unwritten ones hidden.  Measured: with
# 64 a row's attention is the same to the bit at every length, with 32 it is not.
SLOT_STEP = 64


@dataclass(frozen=True, slots=True)
class Span:
    """A run of rows that lies in consecutive slots."""

    first_row: int
    num_rows: int
    first_slot: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one pass writes its rows, and what they may look at.

    num_slots: slots that the pass reads, a multiple of SLOT_STEP.
    hidden: [T, num_slots], True where a row must not look.
    """

    spans: tuple[Span, ...]
    num_slots: int
    hidden: NDArray[np.bool_]


class LayerKind:
    """The slots shared by all layers of one type: positions, not values."""

    def __init__(self, reach: Reach, slots: SlotMap) -> None:
        self.num_slots = -(-slots.num_slots // SLOT_STEP) * SLOT_STEP
        self._reach = reach
        self._slots = slots
        self._positions: NDArray[np.int64] = np.full(self.num_slots, -1, dtype=np.int64)
        self._num_read = 0

    def place(self, first_position: int, num_rows: int) -> Placement:
        """Give the rows at first_position … their slots, and say what each may look at."""
        rows = np.arange(first_position, first_position + num_rows, dtype=np.int64)
        slots = np.array([self._slots.slot(int(row)) for row in rows], dtype=np.int64)
        self._positions[slots] = rows
        end = int(slots.max()) + 1
        self._num_read = max(self._num_read, -(-end // SLOT_STEP) * SLOT_STEP)
        held = self._positions[: self._num_read]
        return Placement(_spans(slots), self._num_read, hidden_slots(held, rows, self._reach))

    def slots_between(self, first: int, end: int) -> NDArray[np.int64]:
        """Slots that still hold a position of first … end - 1."""
        return np.flatnonzero((self._positions >= first) & (self._positions < end))


class TorchKv:
    """K and V of every layer; `length` positions are written."""

    def __init__(
        self,
        plan: KvPlan,
        kinds: dict[str, LayerKind],
        *,
        layers: tuple[LayerShape, ...],
        dtype: torch.dtype,
    ) -> None:
        self.plan = plan
        self.layer_types = tuple(shape.layer_type for shape in layers)
        self.length = 0
        self.forgettable_from = 0  # the first position of the last pass
        self.kinds = kinds
        # Zeros, because a hidden slot is multiplied by a weight of 0 all the same; the system
        # gives the pages when they are first written.
        own = {
            i: torch.zeros(
                2 * shape.num_kv_heads,
                kinds[shape.layer_type].num_slots,
                shape.head_dim,
                dtype=dtype,
            )
            for i, shape in enumerate(layers)
            if shape.kv_source == i
        }
        # A layer without K and V of its own has the very slab that it reads.
        self.slabs = [own[shape.kv_source] for shape in layers]
        self._own = own
        self._views: dict[int, tuple[Tensor, Tensor]] = {}  # by layer, as last read

    @property
    def resident_bytes(self) -> int:
        return sum(slab.nbytes for slab in self._own.values())

    def readable(self, layer: int, num_slots: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer's first `num_slots` slots: [1, num_kv_heads, num_slots, head_dim]."""
        held = self._views.get(layer)
        if held is None or held[0].shape[2] != num_slots:
            part = self.slabs[layer][None, :, :num_slots]
            num_kv_heads = part.shape[1] // 2
            held = part[:, :num_kv_heads], part[:, num_kv_heads:]
            self._views[layer] = held
        return held


def layer_kinds(
    plan: KvPlan, layer_types: tuple[str, ...], *, sliding_window: int | None, slack: int
) -> dict[str, LayerKind]:
    """The slots of each type of layer that the model has."""
    kinds = {}
    for layer_type in dict.fromkeys(layer_types):
        slide = sliding_window if layer_type == "sliding_attention" else None
        reach = reach_of(plan, slide)
        kinds[layer_type] = LayerKind(reach, slot_map(reach, max_len=plan.max_len, slack=slack))
    return kinds


def write(slab: Tensor, rows: Tensor, placement: Placement) -> None:
    """Copy rows [2 * num_kv_heads, T, head_dim] into their slots."""
    for span in placement.spans:
        part = rows[:, span.first_row : span.first_row + span.num_rows]
        slab[:, span.first_slot : span.first_slot + span.num_rows].copy_(part)


def _spans(slots: NDArray[np.int64]) -> tuple[Span, ...]:
    """Cut where slots stop being consecutive."""
    breaks = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    return tuple(
        Span(start, end - start, int(slots[start]))
        for start, end in itertools.pairwise([0, *breaks, len(slots)])
    )
