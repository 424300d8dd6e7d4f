"""A DFlash drafter's forward pass as training needs it: many blocks of many sequences at once.

Every block stands at an anchor, the position of its bonus, and sees of the context only what
lies before it, just as when drafting.  Gradients flow to every weight that `trained` was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.compute.ropes_torch import turn_of
from kakeya.drafting.dflash_bounds import visible
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_torch import (
    block_hidden,
    context_features,
    context_rows,
    embed,
    logits_of,
    rotated,
)
from kakeya.drafting.dflash_weights_torch import DflashWeights, VerifierEnds, assemble


@dataclass(frozen=True, slots=True, eq=False)
class PlainMatrix:
    """A weight [out, in] as it is: any leading axes, and gradients."""

    weight: Tensor
    bias: Tensor | None

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Where blocks stand in their sequences.

    anchors: [B, A], int64: the bonus's position, which is the number of context rows seen.
    bonus_ids: [B, A], int64.  block_len: rows of each, the bonus counted.
    """

    anchors: Tensor
    bonus_ids: Tensor
    block_len: int


def trained(
    config: DflashConfig, tensors: Mapping[str, Tensor], ends: VerifierEnds | None
) -> DflashWeights:
    """The weights of one step, out of parameters by their names in the checkpoint.

    To be called at every step: fusing is part of the graph.  What is saved are the tensors.
    """
    return assemble(config, tensors.__getitem__, tensors.keys(), ends=ends, form=PlainMatrix)


def block_logits(
    config: DflashConfig, weights: DflashWeights, aux: Tensor, blocks: Blocks
) -> Tensor:
    """What each block says of the positions behind its bonus: [B, A, block_len - 1, head rows].

    aux: [B, T, num_aux * hidden_size] at positions 0 … T - 1; rows from an anchor on, padding
    among them, are not seen by its block.
    """
    return logits_of(config, weights, block_states(config, weights, aux, blocks)[:, :, 1:])


def block_states(
    config: DflashConfig, weights: DflashWeights, aux: Tensor, blocks: Blocks
) -> Tensor:
    """The last hidden states of the blocks, the bonus's row first: [B, A, L, hidden_size]."""
    found = context_rows(config, weights, context_features(config, weights, aux))
    turn = turn_of(torch.arange(aux.shape[1]), weights.inv_freq, aux.dtype)
    rows = blocks.anchors[..., None] + torch.arange(blocks.block_len)
    attention = _Attention(config, rotated(found, turn), found.v, rows)
    ids = torch.full_like(rows, config.mask_id)
    ids[..., 0] = blocks.bonus_ids
    block_turn = turn_of(rows, weights.inv_freq, aux.dtype)
    return block_hidden(config, weights, embed(config, weights, ids), block_turn, attention)


class _Attention:
    """The attention of all blocks at once: [B, A, L] rows over T context rows and one another.

    k, v: [B, T, num_layers, num_kv_heads, head_dim].  rows: [B, A, L], their positions.
    """

    def __init__(self, config: DflashConfig, k: Tensor, v: Tensor, rows: Tensor) -> None:
        self._config = config
        self._k, self._v = k, v
        kinds = list(zip(config.layer_types, config.causal_layers, strict=True))
        masks = {
            kind: self._mask(rows, layer_type=kind[0], is_causal=kind[1])
            for kind in dict.fromkeys(kinds)
        }
        self._masks = [masks[kind] for kind in kinds]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, A, L, num_heads * head_dim] for heads [B, A, L, heads, head_dim]."""
        all_k = torch.cat((self._k[:, :, layer], k.flatten(1, 2)), 1).transpose(1, 2)
        all_v = torch.cat((self._v[:, :, layer], v.flatten(1, 2)), 1).transpose(1, 2)
        mixed: Tensor = F.scaled_dot_product_attention(
            q.flatten(1, 2).transpose(1, 2),
            all_k,
            all_v,
            attn_mask=self._masks[layer],
            enable_gqa=self._config.num_heads != self._config.num_kv_heads,
        )
        return mixed.transpose(1, 2).reshape(*q.shape[:3], -1)

    def _mask(self, rows: Tensor, *, layer_type: str, is_causal: bool) -> Tensor:
        """[B, 1, A * L, T + A * L], 0 or -inf."""
        B, A, L = rows.shape
        window = self._config.sliding_window if layer_type == "sliding_attention" else None
        keys = torch.arange(self._k.shape[1])
        at = rows.numpy()
        before = torch.from_numpy(visible(at, keys.numpy(), is_causal=is_causal, window=window))
        before &= keys < rows[..., :1, None]
        own = torch.from_numpy(visible(at, at, is_causal=is_causal, window=window))
        # Blocks do not see one another.
        apart = torch.eye(A, dtype=torch.bool)[None, :, None, :, None]
        beside = (own[:, :, :, None, :] & apart).reshape(B, A * L, A * L)
        seen = torch.cat((before.reshape(B, A * L, -1), beside), -1)
        mask = torch.zeros(seen.shape, dtype=self._k.dtype).masked_fill_(~seen, -torch.inf)
        return mask[:, None]


__all__ = ["Blocks", "PlainMatrix", "block_logits", "block_states", "trained"]
