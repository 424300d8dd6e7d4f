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
    row_cuts,
    slots_for,
)
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_mlx import BlocksAttention, MlxContext, SlabAttention, new_slab
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
from kakeya.drafting.drafter import BlockAsk, Context, DrafterShape, LayerBank, RestorePlan
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
        return self.draft_together((BlockAsk(context, context_len, bonus_id, num_drafts),))[0]

    def draft_together(self, asks: Sequence[BlockAsk]) -> list[Draft]:
        """The drafts of several blocks, in one pass: each over its own context."""
        for ask in asks:
            demand_draftable(self.shape, ask.context_len, ask.bonus_id, ask.num_drafts)
        lens = [1 + ask.num_drafts for ask in asks]
        attentions = [self._attention(ask) for ask in asks]
        hidden = block_hidden(
            self.config,
            self.weights,
            embed(self.config, self.weights, self._ids(asks)),
            _joined([self._block_turn(ask) for ask in asks]),
            BlocksAttention(attentions),
            lens,
        )
        # A block's first row is its bonus.
        rows = mx.concatenate([hidden[cut][1:] for cut in row_cuts(lens)])
        drafted = self._choose(rows, asks)
        mx.eval([attention.slabs for attention in attentions])
        return [self._draft_of(ids) for ids in drafted]

    def read(self, context: MlxContext, first: int, end: int) -> ContextRows:
        """K and V of the context's positions first … end - 1, K turned back: what f_θ goes by."""
        num_kv_heads = self.config.num_kv_heads
        held = mx.stack([slots[:, first:end] for slots in context.slabs]).transpose(2, 0, 1, 3)
        turn = self._turned(first, end)
        back = Turn(turn.cos, -turn.sin)
        k = rotated(ContextRows(held[:, :, :num_kv_heads], held[:, :, num_kv_heads:]), back)
        return ContextRows(k, held[:, :, num_kv_heads:])

    def _ids(self, asks: Sequence[BlockAsk]) -> mx.array:
        blocks = [[ask.bonus_id] + [self.config.mask_id] * ask.num_drafts for ask in asks]
        return mx.array([each for block in blocks for each in block])

    def _attention(self, ask: BlockAsk) -> SlabAttention:
        assert isinstance(ask.context, MlxContext)
        block_len = 1 + ask.num_drafts
        assert ask.context_len + block_len <= ask.context.num_slots
        return SlabAttention(self.config, ask.context.slabs, ask.context_len, block_len)

    def _block_turn(self, ask: BlockAsk) -> Turn:
        return self._turned(ask.context_len, ask.context_len + 1 + ask.num_drafts)

    def _draft_of(self, ids: list[int]) -> Draft:
        itemsize = self._dtype.size
        return Draft(
            tuple(ids),
            diffusion_steps=1,
            forward_passes=1,
            peak_activation_bytes=activation_bytes(self.config, 1 + len(ids), itemsize=itemsize),
        )

    def _choose(self, hidden: mx.array, asks: Sequence[BlockAsk]) -> list[list[int]]:
        logits = logits_of(self.config, self.weights, hidden)
        cuts, selector = row_cuts([ask.num_drafts for ask in asks]), self.weights.selector
        if selector is not None:
            return [
                select(self.config, selector, hidden[cut], logits[cut], ask.bonus_id)
                for ask, cut in zip(asks, cuts, strict=True)
            ]
        best = np.array(mx.argmax(logits, axis=-1))
        ids = best if self.weights.head_ids is None else self.weights.head_ids[best]
        return [[int(each) for each in ids[cut]] for cut in cuts]

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


def _joined(turns: Sequence[Turn]) -> Turn:
    """The turn of the rows of several blocks, one behind the other."""
    cos, sin = [turn.cos for turn in turns], [turn.sin for turn in turns]
    return Turn(mx.concatenate(cos), mx.concatenate(sin))
