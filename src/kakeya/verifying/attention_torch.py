"""Attention of a few rows over a chunked slab, exact by row.

Every product has a fixed shape in its keys (CHUNK_LEN slots), hidden slots weigh exactly 0, and
chunks are added one behind the other.  So a row's result does not depend on how long the slab
is, nor on what lies in slots it may not look at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kakeya.verifying.kv_torch import CHUNK_LEN, Placement


def attend(q: Tensor, k_slab: Tensor, v_slab: Tensor, mask: Tensor, *, num_kv_heads: int) -> Tensor:
    """[T, num_heads * head_dim] float32: each row's mix of the values it may look at.

    q: [T, num_heads, head_dim] float32, rotated and scaled by head_dim ** -0.5.
    k_slab, v_slab: [num_chunks, num_kv_heads, CHUNK_LEN, head_dim].
    mask: [num_chunks, num_kv_heads, T * group, CHUNK_LEN] float32, as `spread` makes it.
    """
    T, num_heads, head_dim = q.shape
    group = num_heads // num_kv_heads
    num_chunks = mask.shape[0]
    M = T * group
    k = k_slab[:num_chunks].to(torch.float32).view(-1, CHUNK_LEN, head_dim)
    v = v_slab[:num_chunks].to(torch.float32).view(-1, CHUNK_LEN, head_dim)
    q = q.view(T, num_kv_heads, group, head_dim).transpose(0, 1).reshape(num_kv_heads, M, head_dim)
    q = q.expand(num_chunks, -1, -1, -1).reshape(-1, M, head_dim)
    scores = torch.baddbmm(mask.view(-1, M, CHUNK_LEN), q, k.transpose(1, 2))
    if num_chunks == 1:
        mixed = torch.bmm(torch.softmax(scores, -1), v).view(num_kv_heads, M, head_dim)
    else:
        weights = _softmax_over_chunks(scores.view(num_chunks, num_kv_heads, M, CHUNK_LEN))
        parts = torch.bmm(weights, v).view(num_chunks, num_kv_heads, M, head_dim)
        mixed = parts[0]
        for part in parts[1:].unbind(0):
            mixed = mixed + part
    mixed = mixed.view(num_kv_heads, T, group, head_dim).transpose(0, 1)
    return mixed.reshape(T, num_heads * head_dim)


def spread(placement: Placement, *, num_kv_heads: int, group: int) -> Tensor:
    """The pass's mask for every head: [num_chunks, num_kv_heads, T * group, CHUNK_LEN]."""
    mask = placement.mask.repeat_interleave(group, dim=2)
    return mask.expand(-1, num_kv_heads, -1, -1).contiguous()


def _softmax_over_chunks(scores: Tensor) -> Tensor:
    """[num_chunks, num_kv_heads, M, CHUNK_LEN] → weights [num_chunks * num_kv_heads, M, CHUNK_LEN].

    The sum runs over all chunks of a row in slot order; hidden slots add 0 at its end.
    """
    num_chunks, num_kv_heads, M, chunk_len = scores.shape
    flat = scores.permute(1, 2, 0, 3).reshape(num_kv_heads, M, num_chunks * chunk_len)
    weights = torch.softmax(flat, -1).view(num_kv_heads, M, num_chunks, chunk_len)
    return weights.permute(2, 0, 1, 3).reshape(num_chunks * num_kv_heads, M, chunk_len)
