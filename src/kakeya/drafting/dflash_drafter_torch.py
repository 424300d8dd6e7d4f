"""The `DflashDrafter` over torch weights: contexts in slabs, one forward pass a block.

All methods run on the engine's own thread; inference mode is entered here and nowhere below.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from kakeya.compute.ropes_torch import Turn, turn_of
from kakeya.compute.torch_arrays import to_torch
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash2_torch import select
from kakeya.drafting.dflash_bounds import (
    activation_bytes,
    context_bytes,
    demand_draftable,
    demand_fitting,
    drafter_shape,
    slots_for,
)
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_torch import SlabAttention, TorchContext, new_slab
from kakeya.drafting.dflash_torch import (
    ContextRows,
    block_hidden,
    context_features,
    context_rows,
    embed,
    logits_of,
    rotated,
)
from kakeya.drafting.dflash_weights_torch import DflashWeights
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
        drafter: DflashTorchDrafter,
        plan: RestorePlan,
        context: TorchContext | None,
        context_len: int,
    ) -> Iterator[LayerBank | None]:
        """As `DflashDrafter.restore`; inference mode is its own to enter."""
        ...


class DflashTorchDrafter:
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
        self._turn = turn_of(torch.arange(_TURN_TABLE_LEN), weights.inv_freq, self._dtype)
        self._block_ids = torch.full((config.block_len,), config.mask_id)

    @property
    def shape(self) -> DrafterShape:
        return drafter_shape(self.config, self._limits)

    def context_bytes(self, context_len: int) -> int:
        growth_len = self._limits.min_growth_len
        return context_bytes(self.config, context_len, growth_len, itemsize=self._dtype.itemsize)

    def restore(
        self, plan: RestorePlan, context: Context | None, context_len: int
    ) -> Iterator[LayerBank | None]:
        """The banks of the f_θ given at load; nothing at all where none was."""
        assert context is None or isinstance(context, TorchContext)
        if self._restorer is not None:
            yield from self._restorer.restore(self, plan, context, context_len)

    def extend(
        self, context: Context | None, context_len: int, aux: Sequence[WireArray]
    ) -> Context:
        """The context with `aux` written at positions context_len …; the same object if given.

        Raises Refused: INVALID_ARGUMENT for aux of another shape, OUT_OF_RANGE beyond the
        drafter's positions.  Then nothing was written.
        """
        assert context is None or isinstance(context, TorchContext)
        end = context_len + demand_fitting(self.shape, context_len, aux)
        with torch.inference_mode():
            rows = [to_torch(each.dtype, each.bits).to(self._dtype) for each in aux]
            features = context_features(self.config, self.weights, torch.cat(rows, -1))
            found = context_rows(self.config, self.weights, features)
            k = rotated(found, self._turned(context_len, end))
            held = self._with_room(context, context_len, end)
            num_kv_heads = self.config.num_kv_heads
            held.slab[:, :num_kv_heads, context_len:end].copy_(k.permute(1, 2, 0, 3))
            held.slab[:, num_kv_heads:, context_len:end].copy_(found.v.permute(1, 2, 0, 3))
        return held

    def draft(self, context: Context, context_len: int, bonus_id: int, num_drafts: int) -> Draft:
        """Exactly `num_drafts` ids below vocab_size, whatever the logits are.

        Equal logits: the lowest id.  Raises Refused: INVALID_ARGUMENT for a bonus or a number of
        drafts out of bounds, OUT_OF_RANGE where context and block pass the drafter's positions.
        """
        assert isinstance(context, TorchContext)
        block_len = 1 + num_drafts
        demand_draftable(self.shape, context_len, bonus_id, num_drafts)
        assert context_len + block_len <= context.num_slots
        with torch.inference_mode():
            ids = self._block_ids[:block_len].clone()
            ids[0] = bonus_id
            hidden = block_hidden(
                self.config,
                self.weights,
                embed(self.config, self.weights, ids),
                self._turned(context_len, context_len + block_len),
                SlabAttention(self.config, context.slab, context_len, block_len),
            )[1:]
            drafted = self._choose(hidden, bonus_id)
        return Draft(
            tuple(drafted),
            diffusion_steps=1,
            forward_passes=1,
            peak_activation_bytes=activation_bytes(
                self.config, block_len, itemsize=self._dtype.itemsize
            ),
        )

    def read(self, context: TorchContext, first: int, end: int) -> ContextRows:
        """K and V of the context's positions first … end - 1, K turned back: what f_θ goes by."""
        num_kv_heads = self.config.num_kv_heads
        with torch.inference_mode():
            held = context.slab[:, :, first:end].permute(2, 0, 1, 3)
            turn = self._turned(first, end)
            back = Turn(turn.cos, -turn.sin)
            k = rotated(ContextRows(held[:, :, :num_kv_heads], held[:, :, num_kv_heads:]), back)
        return ContextRows(k, held[:, :, num_kv_heads:])

    def _choose(self, hidden: Tensor, bonus_id: int) -> list[int]:
        logits = logits_of(self.config, self.weights, hidden)
        if self.weights.selector is not None:
            return select(self.config, self.weights.selector, hidden, logits, bonus_id)
        best = torch.argmax(logits, dim=-1)
        ids = best if self.weights.head_ids is None else self.weights.head_ids[best]
        return [int(each) for each in ids.tolist()]

    def _with_room(self, context: TorchContext | None, context_len: int, end: int) -> TorchContext:
        """The context with slots for `end` positions and a block; a longer slab is a copy."""
        num_slots = slots_for(self.config, end, self._limits.min_growth_len)
        if context is None:
            return TorchContext(new_slab(self.config, num_slots, self._dtype))
        if context.num_slots < num_slots:
            slab = new_slab(self.config, num_slots, self._dtype)
            slab[:, :, :context_len].copy_(context.slab[:, :, :context_len])
            context.slab = slab
        return context

    def _turned(self, first: int, end: int) -> Turn:
        """The turn of positions first … end - 1; out of the table where it reaches."""
        if end <= _TURN_TABLE_LEN:
            return Turn(self._turn.cos[first:end], self._turn.sin[first:end])
        return turn_of(torch.arange(first, end), self.weights.inv_freq, self._dtype)
