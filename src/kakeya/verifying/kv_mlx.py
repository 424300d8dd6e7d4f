"""The K/V of one generation: one slab per layer.

A slab is [2 * num_kv_heads, num_slots, head_dim]: K's heads, then V's, in one piece, so that a
layer's rows are written by one copy.  Owned by the verifier's thread.
"""

from __future__ import annotations

import mlx.core as mx

from kakeya.verifying.model_config import LayerShape
from kakeya.verifying.slots import LayerKind, Placement, rewindable_len
from kakeya.verifying.verifier import KvPlan


class MlxKv:
    """K and V of every layer; `length` positions are written."""

    def __init__(
        self,
        plan: KvPlan,
        kinds: dict[str, LayerKind],
        *,
        layers: tuple[LayerShape, ...],
        dtype: mx.Dtype,
    ) -> None:
        self.plan = plan
        self.layer_types = tuple(shape.layer_type for shape in layers)
        self.length = 0
        self.forgettable_from = 0  # positions below it have to stay
        self.untouched_len = plan.max_len  # positions below it hold no banks
        self.kinds = kinds
        # Zeros, because a hidden slot is multiplied by a weight of 0 all the same.
        own = {
            i: mx.zeros(
                (2 * shape.num_kv_heads, kinds[shape.layer_type].num_slots, shape.head_dim),
                dtype=dtype,
            )
            for i, shape in enumerate(layers)
            if shape.kv_source == i
        }
        # A layer without K and V of its own has the very slab that it reads: assigning to a part
        # of an array changes it for all who hold it.
        self.slabs = [own[shape.kv_source] for shape in layers]
        self._own = own
        self._sources = [shape.kv_source for shape in layers]

    @property
    def resident_bytes(self) -> int:
        return sum(int(slab.nbytes) for slab in self._own.values())

    @property
    def rewindable_len(self) -> int:
        """Positions [0, n) whose K and V are those that their own passes wrote."""
        return rewindable_len(self.kinds, length=self.length, untouched_len=self.untouched_len)

    def begin(self, kv: MlxKv, plan: KvPlan, kinds: dict[str, LayerKind], length: int) -> None:
        """Become a K/V of `plan` with the first `length` positions of `kv`, which may be this one.

        Slots behind them are zeros again, as those of a new one are.
        """
        for i, old in kv._own.items():
            layer_type = self.layer_types[i]
            num_slots = kinds[layer_type].num_slots
            if kv is self and old.shape[1] >= num_slots:
                old[:, length : kv.kinds[layer_type].num_read] = 0
                continue
            new = mx.zeros((old.shape[0], num_slots, old.shape[2]), dtype=old.dtype)
            new[:, :length] = old[:, :length]
            # One layer at a time, so that never more than one is there twice.
            self._own[i] = new
            self.slabs = [self._own[source] for source in self._sources]
        for kind in kinds.values():
            kind.begin(length)
        self.plan, self.kinds, self.length = plan, kinds, length
        self.untouched_len = plan.max_len

    def readable(self, layer: int, num_slots: int) -> tuple[mx.array, mx.array]:
        """K and V of a layer's first `num_slots` slots: [1, num_kv_heads, num_slots, head_dim]."""
        part = self.slabs[layer][None, :, :num_slots]
        num_kv_heads = part.shape[1] // 2
        return part[:, :num_kv_heads], part[:, num_kv_heads:]

    def same_from(self, other: MlxKv, first: int) -> bool:
        """Whether the slots of the positions `other` holds from `first` on have the same bits.

        This one may hold further positions; a ring (a sliding layer's) keeps those apart by its
        slack, so the compared ones still lie where `other` has them.
        """
        slots = {
            layer_type: mx.array(kind.slots_between(first, other.length))
            for layer_type, kind in other.kinds.items()
        }
        pairs = zip(self.slabs, other.slabs, self.layer_types, strict=True)
        return all(
            bool(mx.array_equal(mx.take(a, slots[t], axis=1), mx.take(b, slots[t], axis=1)))
            for a, b, t in pairs
        )


def write(slab: mx.array, rows: mx.array, placement: Placement) -> None:
    """Copy rows [2 * num_kv_heads, T, head_dim] into their slots."""
    for span in placement.spans:
        part = rows[:, span.first_row : span.first_row + span.num_rows]
        slab[:, span.first_slot : span.first_slot + span.num_rows] = part
