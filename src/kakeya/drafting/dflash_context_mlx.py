"""The K/V of one session's context in a drafter, and the attention of one block over it.

One slab a layer: [2 * num_kv_heads, num_slots, head_dim], K's heads, then V's; a position's slot
is the position.  A block is written behind the context, over slots that hold nothing, so that
what is attended to lies in one piece.  (A slab a layer, because MLX writes into an array in place
only where nothing else of the pass reads it.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from kakeya.drafting.dflash_bounds import Sight, row_cuts, sights
from kakeya.drafting.dflash_config import DflashConfig


class MlxContext:
    """K and V of one context; grown by its owner, and only the engine's thread touches it."""

    def __init__(self, slabs: list[mx.array]) -> None:
        self.slabs = slabs

    @property
    def num_slots(self) -> int:
        return self.slabs[0].shape[1]

    @property
    def resident_bytes(self) -> int:
        return sum(int(slab.nbytes) for slab in self.slabs)


def new_slab(config: DflashConfig, num_slots: int, dtype: mx.Dtype) -> list[mx.array]:
    """Zeros, so that a slot never written holds no stranger's memory."""
    c = config
    shape = (2 * c.num_kv_heads, num_slots, c.head_dim)
    return [mx.zeros(shape, dtype=dtype) for _ in range(c.num_layers)]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The slots one kind of layer reads, and which of them each row sees.

    mask: [T, last - first]; None: every row sees every slot.
    """

    first: int
    mask: mx.array | None


class SlabAttention:
    """The attention of one block: writes its K and V behind the context and looks at both."""

    def __init__(
        self, config: DflashConfig, slabs: list[mx.array], context_len: int, block_len: int
    ) -> None:
        self._config = config
        self.slabs = slabs
        self.block_len = block_len
        self._context_len = context_len
        self._end = context_len + block_len
        found = sights(config, context_len, block_len)
        views = {id(sight): self._view(sight) for sight in found}
        self._views = [views[id(sight)] for sight in found]

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """[T, num_heads * head_dim] for q [T, num_heads, head_dim] and k, v of the block."""
        c, view, slots = self._config, self._views[layer], self.slabs[layer]
        rows = mx.concatenate([k, v], axis=1).swapaxes(0, 1)
        slots[:, self._context_len : self._end] = rows
        held = slots[None, :, view.first : self._end]
        mixed = mx.fast.scaled_dot_product_attention(
            q.swapaxes(0, 1)[None],
            held[:, : c.num_kv_heads],
            held[:, c.num_kv_heads :],
            scale=c.head_dim**-0.5,
            mask=view.mask,
        )
        return mixed[0].swapaxes(0, 1).reshape(len(q), c.num_heads * c.head_dim)

    def _view(self, sight: Sight) -> View:
        return View(sight.first, None if sight.seen is None else mx.array(sight.seen))


class BlocksAttention:
    """The attention of several blocks that stand one behind the other, each over its own slab."""

    def __init__(self, blocks: Sequence[SlabAttention]) -> None:
        self._blocks = blocks
        self._cuts = row_cuts([block.block_len for block in blocks])

    def __call__(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """As SlabAttention, for the rows of all blocks."""
        blocks = zip(self._blocks, self._cuts, strict=True)
        return mx.concatenate([block(layer, q[cut], k[cut], v[cut]) for block, cut in blocks])


__all__ = ["BlocksAttention", "MlxContext", "SlabAttention", "new_slab"]
