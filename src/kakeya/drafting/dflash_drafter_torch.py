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
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_torch import (
    SlabAttention,
    TorchContext,
    new_slab,
    slots_for,
)
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
from kakeya.errors import demand
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
        c = self.config
        return DrafterShape(
            vocab_size=c.vocab_size,
            num_aux=len(c.aux_layers),
            hidden_size=c.hidden_size,
            max_context_len=c.max_context_len,
            max_num_drafts=c.block_len - 1,
            max_extend_len=self._limits.max_extend_len,
        )

    def context_bytes(self, context_len: int) -> int:
        c = self.config
        if context_len <= 0:
            return 0
        num_slots = slots_for(c, context_len, self._limits.min_growth_len)
        return 2 * c.num_layers * c.num_kv_heads * num_slots * c.head_dim * self._dtype.itemsize

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
        num_rows = self._demand_fitting(aux)
        end = context_len + num_rows
        demand(
            context_len >= 0 and end <= self.config.max_context_len,
            "OUT_OF_RANGE",
            f"the context would reach {end} positions, "
            f"the drafter has {self.config.max_context_len}",
        )
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
        self._demand_draftable(context_len, bonus_id, num_drafts)
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
            peak_activation_bytes=self._activation_bytes(block_len),
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

    def _demand_fitting(self, aux: Sequence[WireArray]) -> int:
        """The number of rows, which all arrays share."""
        shape = self.shape
        demand(
            len(aux) == shape.num_aux,
            "INVALID_ARGUMENT",
            f"there are {len(aux)} aux arrays, the drafter takes {shape.num_aux}",
        )
        num_rows = aux[0].bits.shape[0] if aux[0].bits.ndim else 0
        demand(
            1 <= num_rows <= shape.max_extend_len,
            "INVALID_ARGUMENT",
            f"aux has {num_rows} rows, it must have 1 to {shape.max_extend_len}",
        )
        for i, each in enumerate(aux):
            demand(
                each.bits.shape == (num_rows, shape.hidden_size),
                "INVALID_ARGUMENT",
                f"aux[{i}] has shape {list(each.bits.shape)}, "
                f"expected [{num_rows}, {shape.hidden_size}]",
            )
        return num_rows

    def _demand_draftable(self, context_len: int, bonus_id: int, num_drafts: int) -> None:
        shape = self.shape
        demand(
            0 <= bonus_id < shape.vocab_size,
            "INVALID_ARGUMENT",
            f"the bonus is {bonus_id}, the vocabulary is 0 to {shape.vocab_size - 1}",
        )
        demand(
            1 <= num_drafts <= shape.max_num_drafts,
            "INVALID_ARGUMENT",
            f"num_drafts is {num_drafts}, it must be 1 to {shape.max_num_drafts}",
        )
        end = context_len + 1 + num_drafts
        demand(
            end <= shape.max_context_len,
            "OUT_OF_RANGE",
            f"the block would reach {end} positions, the drafter has {shape.max_context_len}",
        )

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

    def _activation_bytes(self, block_len: int) -> int:
        """An estimate of a pass: the widest part of a layer, or the logits beside the last one."""
        c = self.config
        widest = max(2 * c.intermediate_size, 2 * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
        num_logits = c.draft_vocab_size or c.vocab_size
        return block_len * (2 * c.hidden_size + max(widest, num_logits)) * self._dtype.itemsize
