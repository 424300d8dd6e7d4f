"""The K/V of one session's context in a drafter, and the attention of one block over it.

One slab for all layers: [num_layers, 2 * num_kv_heads, num_slots, head_dim], K's heads, then V's;
a position's slot is the position.  A block is written behind the context, over slots that hold
nothing, so that what is attended to lies in one piece and is never copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

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


def slots_for(config: DflashConfig, context_len: int, min_growth_len: int) -> int:
    """Slots a context of `context_len` positions has: room for a block behind it as well.

    Never falls with the length.  Steps grow with the length (a quarter of its power of two), so
    that all the copying of a context that grows costs a few times its size.
    """
    needed = context_len + config.block_len
    step = max(min_growth_len, 1 << max(0, needed.bit_length() - 3))
    return min(-(-needed // step) * step, config.max_context_len)


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
        self._context_len = context_len
        self._end = context_len + block_len
        kinds = list(zip(config.layer_types, config.causal_layers, strict=True))
        views = {kind: self._view(*kind) for kind in dict.fromkeys(kinds)}
        self._views = [views[kind] for kind in kinds]

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

    def _view(self, layer_type: str, is_causal: bool) -> View:
        c = self._config
        window = c.sliding_window if layer_type == "sliding_attention" else None
        first = 0 if window is None else max(0, self._context_len + 1 - window)
        if window is None and not is_causal:
            return View(first, None)
        rows = torch.arange(self._context_len, self._end)
        keys = torch.arange(first, self._end)
        seen = visible(rows, keys, is_causal=is_causal, window=window)
        mask = torch.zeros(seen.shape, dtype=self._slab.dtype).masked_fill_(~seen, -torch.inf)
        return View(first, mask.repeat_interleave(c.num_heads // c.num_kv_heads, dim=0))


def visible(rows: Tensor, keys: Tensor, *, is_causal: bool, window: int | None) -> Tensor:
    """Whether the row at a position sees the key at another: [..., len(rows), len(keys)], bool.

    rows: [..., T], keys: [..., S], positions of one block and of its context and itself.  A
    window reaches as far ahead as back.
    """
    distance = rows[..., :, None] - keys[..., None, :]
    seen = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    return seen if window is None else seen & (distance.abs() < window)


__all__ = ["SlabAttention", "TorchContext", "new_slab", "slots_for", "visible"]
