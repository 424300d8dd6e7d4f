"""The K/V of one generation: one slab per layer, cut into chunks of slots.

Slabs are [num_chunks, num_kv_heads, CHUNK_LEN, head_dim]: whole chunks are multiplied at a time,
so every product has the same shape whatever the length is.  Owned by the verifier's thread.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.window import Reach, SlotMap, hidden_slots, reach_of, slot_map

# Slots that are multiplied at a time.  Long enough that the products of a long context are few,
# short enough that the empty slots of a short one cost nothing (5 µs a layer).
CHUNK_LEN = 256


@dataclass(frozen=True, slots=True)
class Span:
    """A run of rows that lies in consecutive slots of one chunk."""

    first_row: int
    num_rows: int
    chunk: int
    first_slot: int  # within the chunk


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one pass writes its rows, and what they may look at.

    mask: [num_chunks, 1, T, CHUNK_LEN] float32, 0 where a row may look and -inf where not.
    """

    spans: tuple[Span, ...]
    num_chunks: int
    mask: Tensor


class LayerKind:
    """The slots shared by all layers of one type: positions, not values."""

    def __init__(self, reach: Reach, slots: SlotMap) -> None:
        self.reach = reach
        self.slots = slots
        self.num_chunks = -(-slots.num_slots // CHUNK_LEN)
        self._positions: NDArray[np.int64] = np.full(
            self.num_chunks * CHUNK_LEN, -1, dtype=np.int64
        )
        self._used_chunks = 0

    def place(self, first_position: int, num_rows: int) -> Placement:
        """Give the rows at first_position … their slots, and say what each may look at."""
        rows = np.arange(first_position, first_position + num_rows, dtype=np.int64)
        slots = np.array([self.slots.slot(int(row)) for row in rows], dtype=np.int64)
        self._positions[slots] = rows
        self._used_chunks = max(self._used_chunks, int(slots.max()) // CHUNK_LEN + 1)
        held = self._positions[: self._used_chunks * CHUNK_LEN]
        hidden = hidden_slots(held, rows, self.reach)
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0.0)).astype(np.float32)
        cut = mask.reshape(num_rows, self._used_chunks, CHUNK_LEN).transpose(1, 0, 2)
        return Placement(
            spans=_spans(slots),
            num_chunks=self._used_chunks,
            mask=torch.from_numpy(np.ascontiguousarray(cut)).unsqueeze(1),
        )


class TorchKv:
    """K and V of every layer; `length` positions are written."""

    def __init__(
        self,
        plan: KvPlan,
        *,
        layer_types: tuple[str, ...],
        sliding_window: int | None,
        slack: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        self.plan = plan
        self.length = 0
        self.forgettable_from = 0  # the first position of the last pass
        self.kinds = layer_kinds(plan, layer_types, sliding_window, slack)
        # Zeros, because a slot never written is multiplied by a weight of 0 all the same.
        self.slabs = [
            (
                _empty_slab(self.kinds[t], num_kv_heads, head_dim, dtype),
                _empty_slab(self.kinds[t], num_kv_heads, head_dim, dtype),
            )
            for t in layer_types
        ]

    @property
    def resident_bytes(self) -> int:
        return sum(k.nbytes + v.nbytes for k, v in self.slabs)


def layer_kinds(
    plan: KvPlan, layer_types: tuple[str, ...], sliding_window: int | None, slack: int
) -> dict[str, LayerKind]:
    """The slots of each type of layer that the model has."""
    kinds = {}
    for layer_type in dict.fromkeys(layer_types):
        slide = sliding_window if layer_type == "sliding_attention" else None
        reach = reach_of(plan, slide)
        kinds[layer_type] = LayerKind(reach, slot_map(reach, max_len=plan.max_len, slack=slack))
    return kinds


def _empty_slab(kind: LayerKind, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(kind.num_chunks, num_kv_heads, CHUNK_LEN, head_dim, dtype=dtype)


def write(slab: Tensor, rows: Tensor, placement: Placement) -> None:
    """Copy rows [T, num_kv_heads, head_dim] into their slots."""
    for span in placement.spans:
        part = rows[span.first_row : span.first_row + span.num_rows]
        end = span.first_slot + span.num_rows
        slab[span.chunk, :, span.first_slot : end].copy_(part.transpose(0, 1))


def _spans(slots: NDArray[np.int64]) -> tuple[Span, ...]:
    """Cut where slots stop being consecutive, and at chunk edges."""
    breaks = [0]
    for i in range(1, len(slots)):
        if slots[i] != slots[i - 1] + 1 or slots[i] % CHUNK_LEN == 0:
            breaks.append(i)
    breaks.append(len(slots))
    return tuple(
        Span(start, end - start, int(slots[start]) // CHUNK_LEN, int(slots[start]) % CHUNK_LEN)
        for start, end in itertools.pairwise(breaks)
    )
