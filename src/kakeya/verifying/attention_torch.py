"""Attention of a few rows over a slab, exact by row.

The fused kernel multiplies tiles of at most 32 query rows, and picks its product by their number
(1 to 7 rows run others than 8 and more).  So the query rows of a K/V head are padded to a
multiple of ROW_STEP: no tile is ever smaller, and a row's result depends neither on the rows
beside it nor on slots it may not look at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.verifying.slots import Placement

# Measured over 1 to 16 heads a group and head_dim 32 to 128: 8 always holds, 4 does not.
ROW_STEP = 8


@dataclass(frozen=True, slots=True)
class Queries:
    """Room for the padded queries of one layer at a time, and what they may look at.

    padded: [1, num_kv_heads, M, head_dim], M = T * group rounded up to ROW_STEP.
    rows: the same memory without the padding: [num_kv_heads, T, group, head_dim].
    mask: [1, 1, M, num_slots], 0 where a row may look and -inf where not.
    """

    padded: Tensor
    rows: Tensor
    mask: Tensor


def queries_for(
    placement: Placement,
    num_rows: int,
    *,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
) -> Queries:
    """Make room for one pass; padded rows are zeros that look at everything, and are not read."""
    M = -(-num_rows * group // ROW_STEP) * ROW_STEP
    padded = torch.zeros(1, num_kv_heads, M, head_dim, dtype=dtype)
    hidden = torch.from_numpy(placement.hidden).repeat_interleave(group, dim=0)
    mask = torch.zeros(M, placement.num_slots, dtype=dtype)
    mask[: num_rows * group].masked_fill_(hidden, -torch.inf)
    rows = padded[0, :, : num_rows * group].view(num_kv_heads, num_rows, group, head_dim)
    return Queries(padded, rows, mask[None, None])


def attend(q: Tensor, k: Tensor, v: Tensor, queries: Queries, scale: float | None) -> Tensor:
    """[T, num_heads * head_dim]: each row's mix of the values it may look at.

    q: [T, num_heads, head_dim], rotated.  k, v: [1, num_kv_heads, num_slots, head_dim].
    scale: of the products of q and k; None: 1 / sqrt(head_dim).
    """
    num_kv_heads, T, group, head_dim = queries.rows.shape
    queries.rows.copy_(q.view(T, num_kv_heads, group, head_dim).transpose(0, 1))
    mixed: Tensor = F.scaled_dot_product_attention(
        queries.padded, k, v, attn_mask=queries.mask, scale=scale
    )
    mixed = mixed[0, :, : T * group].view(num_kv_heads, T, group, head_dim)
    return mixed.transpose(0, 1).reshape(T, num_kv_heads * group * head_dim)
