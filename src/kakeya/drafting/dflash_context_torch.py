"""The K/V of one session's context in a drafter, and the attention of one block over it.

One slab for all layers: [num_layers, 2 * num_kv_heads, num_slots, head_dim], K's heads, then V's;
a position's slot is the position.  A block is written behind the context, over slots that hold
nothing, so that what is attended to lies in one piece and is never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.drafting.dflash_bounds import Sight, row_cuts, sights
from kakeya.drafting.dflash_config import DflashConfig


class TorchContext:
    """K and V of one context; grown by its owner, and only the engine's thread touches it."""

    def __init__(self, slab: Tensor) -> None:
        self.slab = slab

    @property
    def num_slots(self) -> int:
        return self.slab.shape[2]

    @property
    def resident_bytes(self) -> int:
        return self.slab.nbytes


def new_slab(config: DflashConfig, num_slots: int, dtype: torch.dtype) -> Tensor:
    """Zeros, so that a slot never written holds no stranger's memory."""
    c = config
    return torch.zeros(c.num_layers, 2 * c.num_kv_heads, num_slots, c.head_dim, dtype=dtype)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The slots one kind of layer reads, and what each row may not see of them.

    mask: [T * group, last - first], 0 or -inf; None: every row sees every slot.
    """

    first: int
    mask: Tensor | None


class SlabAttention:
    """The attention of one block: writes its K and V behind the context and looks at both."""

    def __init__(
        self, config: DflashConfig, slab: Tensor, context_len: int, block_len: int
    ) -> None:
        self._config = config
        self._slab = slab
        self.block_len = block_len
        self._context_len = context_len
        self._end = context_len + block_len
        found = sights(config, context_len, block_len)
        views = {id(sight): self._view(sight) for sight in found}
        self._views = [views[id(sight)] for sight in found]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[T, num_heads * head_dim] for q [T, num_heads, head_dim] and k, v of the block."""
        c, view, slots = self._config, self._views[layer], self._slab[layer]
        T, group = len(q), c.num_heads // c.num_kv_heads
        slots[: c.num_kv_heads, self._context_len : self._end].copy_(k.transpose(0, 1))
        slots[c.num_kv_heads :, self._context_len : self._end].copy_(v.transpose(0, 1))
        held = slots[None, :, view.first : self._end]
        # The query heads of one K/V head become rows of one product.
        rows = q.view(T, c.num_kv_heads, group, c.head_dim).transpose(0, 1)
        mixed = F.scaled_dot_product_attention(
            rows.reshape(1, c.num_kv_heads, T * group, c.head_dim),
            held[:, : c.num_kv_heads],
            held[:, c.num_kv_heads :],
            attn_mask=view.mask,
        )
        mixed = mixed.view(c.num_kv_heads, T, group, c.head_dim).transpose(0, 1)
        return mixed.reshape(T, c.num_heads * c.head_dim)

    def _view(self, sight: Sight) -> View:
        if sight.seen is None:
            return View(sight.first, None)
        seen = torch.from_numpy(sight.seen)
        mask = torch.zeros(seen.shape, dtype=self._slab.dtype).masked_fill_(~seen, -torch.inf)
        group = self._config.num_heads // self._config.num_kv_heads
        return View(sight.first, mask.repeat_interleave(group, dim=0))


class BlocksAttention:
    """The attention of several blocks that stand one behind the other, each over its own slab."""

    def __init__(self, blocks: Sequence[SlabAttention]) -> None:
        self._blocks = blocks
        self._cuts = row_cuts([block.block_len for block in blocks])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As SlabAttention, for the rows of all blocks."""
        blocks = zip(self._blocks, self._cuts, strict=True)
        return torch.cat([block(layer, q[cut], k[cut], v[cut]) for block, cut in blocks])


__all__ = ["BlocksAttention", "SlabAttention", "TorchContext", "new_slab"]
