"""Where one pass writes its rows in the slabs, and what they may look at.

Positions, not values: shared by the twins, and pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.verifying.model_config import LayerShape
from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.window import Reach, SlotMap, hidden_slots, reach_of, slot_map_of

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

    @property
    def is_ring(self) -> bool:
        """Whether positions written later take the slots of earlier ones."""
        return self._slots.ring_len > 0

    def place(self, first_position: int, num_rows: int, *, sees_block: bool = False) -> Placement:
        """Give the rows at first_position … their slots, and say what each may look at.

        sees_block: one another too, later ones as well.
        """
        rows = np.arange(first_position, first_position + num_rows, dtype=np.int64)
        slots = np.array([self._slots.slot(int(row)) for row in rows], dtype=np.int64)
        self._positions[slots] = rows
        end = int(slots.max()) + 1
        self._num_read = max(self._num_read, -(-end // SLOT_STEP) * SLOT_STEP)
        held = self._positions[: self._num_read]
        hidden = hidden_slots(held, rows, self._reach, sees_block=sees_block)
        return Placement(_spans(slots), self._num_read, hidden)

    def reaches(self, reach: Reach) -> None:
        """Rows attend to `reach` from now on."""
        self._reach = reach

    def held(self, positions: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those of `positions` that still have their slot, as offsets into the range; the slots."""
        at = np.arange(positions.start, positions.stop, dtype=np.int64)
        slots = np.array([self._slots.slot(int(each)) for each in at], dtype=np.int64)
        kept = np.flatnonzero(self._positions[slots] == at) if len(at) else at
        return kept, slots[kept]

    @property
    def num_read(self) -> int:
        """Slots that passes have read so far; none behind them was ever written."""
        return self._num_read

    @property
    def unmoved_len(self) -> int:
        """Positions [0, unmoved_len) still lie in the slots of their own numbers."""
        differs = self._positions != np.arange(self.num_slots)
        return int(differs.argmax()) if differs.any() else self.num_slots

    @property
    def first_round_len(self) -> int:
        """Positions below it are given the slots of their own numbers."""
        return self._slots.num_slots

    def begin(self, length: int) -> None:
        """Positions [0, length) are written, in the slots of their own numbers."""
        self._positions[:length] = np.arange(length)
        self._num_read = -(-length // SLOT_STEP) * SLOT_STEP

    def slots_between(self, first: int, end: int) -> NDArray[np.int64]:
        """Slots that still hold a position of first … end - 1."""
        return np.flatnonzero((self._positions >= first) & (self._positions < end))


def layer_kinds(
    plan: KvPlan, layer_types: tuple[str, ...], *, sliding_window: int | None, slack: int
) -> dict[str, LayerKind]:
    """The slots of each type of layer that the model has."""
    kinds = {}
    for layer_type in dict.fromkeys(layer_types):
        slide = sliding_window if layer_type == "sliding_attention" else None
        reach = reach_of(plan, slide)
        kinds[layer_type] = LayerKind(reach, slot_map_of(plan, reach, slack=slack))
    return kinds


def forgettable_from(
    kinds: Mapping[str, LayerKind], forgettable: int, *, length: int, slack: int
) -> int:
    """The first position that can be forgotten once `length` are written; `forgettable`: before.

    A ring keeps `slack` positions more than its rows look at, so that many can be taken back.
    """
    has_ring = any(kind.is_ring for kind in kinds.values())
    return max(forgettable, length - slack) if has_ring else forgettable


def rewindable_len(kinds: Mapping[str, LayerKind], *, length: int, untouched_len: int) -> int:
    """Positions [0, n) whose K and V are still those that their own passes wrote.

    length: positions written.  untouched_len: those behind it may hold banks.
    """
    return min(length, untouched_len, *(kind.unmoved_len for kind in kinds.values()))


def kv_values(layers: tuple[LayerShape, ...], kinds: dict[str, LayerKind]) -> int:
    """How many numbers all slabs hold together."""
    return sum(
        2 * shape.num_kv_heads * kinds[shape.layer_type].num_slots * shape.head_dim
        for i, shape in enumerate(layers)
        if shape.kv_source == i
    )


def _spans(slots: NDArray[np.int64]) -> tuple[Span, ...]:
    """Cut where slots stop being consecutive."""
    breaks = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    return tuple(
        Span(start, end - start, int(slots[start]))
        for start, end in itertools.pairwise([0, *breaks, len(slots)])
    )
