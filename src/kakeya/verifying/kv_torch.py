"""The K/V of one generation: one slab per layer, and what a pass writes and looks at.

A slab is [2 * num_kv_heads, num_slots, head_dim]: K's heads, then V's, in one piece, so that a
layer's rows are written by one copy.  Owned by the verifier's thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kakeya.verifying.model_config import LayerShape
from kakeya.verifying.slots import LayerKind, Placement, rewindable_len
from kakeya.verifying.verifier import KvPlan


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
        self.forgettable_from = 0  # positions below it have to stay
        self.untouched_len = plan.max_len  # positions below it hold no banks
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
        self._sources = [shape.kv_source for shape in layers]
        self._views: dict[int, tuple[Tensor, Tensor]] = {}  # by layer, as last read

    @property
    def resident_bytes(self) -> int:
        return sum(slab.nbytes for slab in self._own.values())

    @property
    def rewindable_len(self) -> int:
        """Positions [0, n) whose K and V are those that their own passes wrote."""
        return rewindable_len(self.kinds, length=self.length, untouched_len=self.untouched_len)

    def begin(self, kv: TorchKv, plan: KvPlan, kinds: dict[str, LayerKind], length: int) -> None:
        """Become a K/V of `plan` with the first `length` positions of `kv`, which may be this one.

        Slots behind them are zeros again, as those of a new one are.
        """
        for i, old in kv._own.items():
            layer_type = self.layer_types[i]
            num_slots = kinds[layer_type].num_slots
            if kv is self and old.shape[1] >= num_slots:
                old[:, length : kv.kinds[layer_type].num_read] = 0
                continue
            new = torch.zeros(len(old), num_slots, old.shape[2], dtype=old.dtype)
            new[:, :length] = old[:, :length]
            # One layer at a time, so that never more than one is there twice.
            self._own[i] = new
            self.slabs = [self._own[source] for source in self._sources]
        for kind in kinds.values():
            kind.begin(length)
        self.plan, self.kinds, self.length = plan, kinds, length
        self.untouched_len = plan.max_len
        self._views = {}

    def readable(self, layer: int, num_slots: int) -> tuple[Tensor, Tensor]:
        """K and V of a layer's first `num_slots` slots: [1, num_kv_heads, num_slots, head_dim]."""
        held = self._views.get(layer)
        if held is None or held[0].shape[2] != num_slots:
            part = self.slabs[layer][None, :, :num_slots]
            num_kv_heads = part.shape[1] // 2
            held = part[:, :num_kv_heads], part[:, num_kv_heads:]
            self._views[layer] = held
        return held

    def same_from(self, other: TorchKv, first: int) -> bool:
        """Whether the slots of the positions `other` holds from `first` on have the same bits.

        This one may hold further positions; a ring (a sliding layer's) keeps those apart by its
        slack, so the compared ones still lie where `other` has them.
        """
        slots = {
            layer_type: torch.from_numpy(kind.slots_between(first, other.length))
            for layer_type, kind in other.kinds.items()
        }
        pairs = zip(self.slabs, other.slabs, self.layer_types, strict=True)
        return all(torch.equal(a[:, slots[t]], b[:, slots[t]]) for a, b, t in pairs)


def write(slab: Tensor, rows: Tensor, placement: Placement) -> None:
    """Copy rows [2 * num_kv_heads, T, head_dim] into their slots."""
    for span in placement.spans:
        part = rows[:, span.first_row : span.first_row + span.num_rows]
        slab[:, span.first_slot : span.first_slot + span.num_rows].copy_(part)
