"""The `DflashDrafter` over MLX weights: contexts in slabs, one forward pass a block.

All methods run on the engine's own thread: MLX arrays belong to the thread that made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from kakeya.compute.mlx_arrays import to_mlx
from kakeya.compute.ropes_mlx import Turn, turn_of
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash2_mlx import select
from kakeya.drafting.dflash_bounds import (
    activation_bytes,
    context_bytes,
    demand_draftable,
    demand_fitting,
    drafter_shape,
    slots_for,
)
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_mlx import MlxContext, SlabAttention, new_slab
from kakeya.drafting.dflash_mlx import (
    ContextRows,
    block_hidden,
    context_features,
    context_rows,
    embed,
    logits_of,
    rotated,
)
from kakeya.drafting.dflash_weights_mlx import DflashWeights
from kakeya.drafting.drafter import Context, DrafterShape, LayerBank, RestorePlan
from kakeya.drafting.proposer import Draft
from kakeya.wire.tensor import WireArray

# Rotations of these first positions are kept (2 MB at a head_dim of 128 in bfloat16); those of
# later ones are computed at every call, which takes some 40 µs.
_TURN_TABLE_LEN = 4096


class Restorer(Protocol):
    """Makes a verifier's banks from what a drafter computes (f_θ)."""

    def restore(
        self,
        drafter: DflashMlxDrafter,
        plan: RestorePlan,
        context: MlxContext | None,
        context_len: int,
    ) -> Iterator[LayerBank | None]:
        """As `DflashDrafter.restore`."""
        ...


class DflashMlxDrafter:
    """The `DflashDrafter` of one checkpoint."""

    def __init__(
        self,
        config: DflashConfig,
        weights: DflashWeights,
        *,
        model_id: str,
        limits: DrafterLimits,
        restorer: Restorer | None = None,
    ) -> None:
        self.model_id = model_id
        self.config = config
        self.weights = weights
        self._limits = limits
        self._restorer = restorer
        self._dtype = weights.embedding.dtype
        self._turn = turn_of(np.arange(_TURN_TABLE_LEN), weights.inv_freq, self._dtype)

    @property
    def shape(self) -> DrafterShape:
        return drafter_shape(self.config, self._limits)

    def context_bytes(self, context_len: int) -> int:
        growth_len = self._limits.min_growth_len
        return context_bytes(self.config, context_len, growth_len, itemsize=self._dtype.size)

    def restore(
        self, plan: RestorePlan, context: Context | None, context_len: int
    ) -> Iterator[LayerBank | None]:
        """The banks of the f_θ given at load; nothing at all where none was."""
        assert context is None or isinstance(context, MlxContext)
        if self._restorer is not None:
            yield from self._restorer.restore(self, plan, context, context_len)

    def extend(
        self, context: Context | None, context_len: int, aux: Sequence[WireArray]
    ) -> Context:
        """The context with `aux` written at positions context_len …; the same object if given.

        Raises Refused: INVALID_ARGUMENT for aux of another shape, OUT_OF_RANGE beyond the
        drafter's positions.  Then nothing was written.
        """
        assert context is None or isinstance(context, MlxContext)
        end = context_len + demand_fitting(self.shape, context_len, aux)
        rows = [to_mlx(each.dtype, each.bits).astype(self._dtype) for each in aux]
        features = context_features(self.config, self.weights, mx.concatenate(rows, axis=-1))
        found = context_rows(self.config, self.weights, features)
        k = rotated(found, self._turned(context_len, end))
        held = self._with_room(context, context_len, end)
        # [num_layers, 2 * num_kv_heads, T, head_dim]
        heads = mx.concatenate([k, found.v], axis=2).transpose(1, 2, 0, 3)
        for layer, slots in enumerate(held.slabs):
            slots[:, context_len:end] = heads[layer]
        mx.eval(held.slabs)
        return held

    def draft(self, context: Context, context_len: int, bonus_id: int, num_drafts: int) -> Draft:
        """Exactly `num_drafts` ids below vocab_size, whatever the logits are.

        Equal logits: the lowest id.  Raises Refused: INVALID_ARGUMENT for a bonus or a number of
        drafts out of bounds, OUT_OF_RANGE where context and block pass the drafter's positions.
        """
        assert isinstance(context, MlxContext)
        block_len = 1 + num_drafts
        demand_draftable(self.shape, context_len, bonus_id, num_drafts)
        assert context_len + block_len <= context.num_slots
        ids = mx.array([bonus_id] + [self.config.mask_id] * num_drafts)
        hidden = block_hidden(
            self.config,
            self.weights,
            embed(self.config, self.weights, ids),
            self._turned(context_len, context_len + block_len),
            SlabAttention(self.config, context.slabs, context_len, block_len),
        )[1:]
        drafted = self._choose(hidden, bonus_id)
        mx.eval(context.slabs)
        return Draft(
            tuple(drafted),
            diffusion_steps=1,
            forward_passes=1,
            peak_activation_bytes=activation_bytes(
                self.config, block_len, itemsize=self._dtype.size
            ),
        )

    def read(self, context: MlxContext, first: int, end: int) -> ContextRows:
        """K and V of the context's positions first … end - 1, K turned back: what f_θ goes by."""
        num_kv_heads = self.config.num_kv_heads
        held = mx.stack([slots[:, first:end] for slots in context.slabs]).transpose(2, 0, 1, 3)
        turn = self._turned(first, end)
        back = Turn(turn.cos, -turn.sin)
        k = rotated(ContextRows(held[:, :, :num_kv_heads], held[:, :, num_kv_heads:]), back)
        return ContextRows(k, held[:, :, num_kv_heads:])

    def _choose(self, hidden: mx.array, bonus_id: int) -> list[int]:
        logits = logits_of(self.config, self.weights, hidden)
        if self.weights.selector is not None:
            return select(self.config, self.weights.selector, hidden, logits, bonus_id)
        best = np.array(mx.argmax(logits, axis=-1))
        ids = best if self.weights.head_ids is None else self.weights.head_ids[best]
        return [int(each) for each in ids]

    def _with_room(self, context: MlxContext | None, context_len: int, end: int) -> MlxContext:
        """The context with slots for `end` positions and a block; a longer slab is a copy."""
        num_slots = slots_for(self.config, end, self._limits.min_growth_len)
        if context is None:
            return MlxContext(new_slab(self.config, num_slots, self._dtype))
        if context.num_slots < num_slots:
            slabs = new_slab(self.config, num_slots, self._dtype)
            for slots, old in zip(slabs, context.slabs, strict=True):
                slots[:, :context_len] = old[:, :context_len]
            context.slabs = slabs
        return context

    def _turned(self, first: int, end: int) -> Turn:
        """The turn of positions first … end - 1; out of the table where it reaches."""
        if end <= _TURN_TABLE_LEN:
            return Turn(self._turn.cos[first:end], self._turn.sin[first:end])
        return turn_of(np.arange(first, end), self.weights.inv_freq, self._dtype)
