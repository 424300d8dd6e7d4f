"""Any verifier's folder, many sequences at a time: what training reads of it and lets it write.

The parts of a layer are those of the serving engine (verifying/layers_torch), so every family it
computes can be learned from; only attention is another, for rows of many sequences.  Nothing
here is exact by row, and nothing need be: it is text to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.compute.ropes_torch import turn_of
from kakeya.config.verifying import VerifyingLimits
from kakeya.drafting.dflash_training_torch import PlainMatrix
from kakeya.drafting.dflash_weights_torch import VerifierEnds
from kakeya.verifying.checkpoint import read_checkpoint
from kakeya.verifying.layers_torch import after_attention, layer_heads, per_layer_inputs, rms_norm
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.weights_torch import Weights, load_weights


@dataclass(frozen=True, slots=True, eq=False)
class BatchVerifier:
    """A verifier's weights, in a form for many rows."""

    config: ModelConfig
    weights: Weights

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def ends(self) -> VerifierEnds:
        """Embedding and head in float32."""
        head = self.weights.head
        assert isinstance(head, PlainMatrix)
        embedding = self.weights.embedding.float()
        is_tied = self.config.has_tied_head
        return VerifierEnds(embedding, embedding if is_tied else head.weight.float())


@dataclass(slots=True, eq=False)
class BatchKv:
    """K and V of B sequences, each as long as its own: layer → [2, B, kv heads, slots, head_dim].

    A position's slot is the position.
    """

    layers: list[Tensor | None]

    def keep(self, rows: Tensor) -> None:
        """Forget all sequences but `rows`."""
        self.layers = [each if each is None else each[:, rows] for each in self.layers]


def load_batch_verifier(folder: Path, *, dtype: str) -> BatchVerifier:
    """dtype: "float32" or "bfloat16", whatever the folder stores.  Raises Refused."""
    limits = VerifyingLimits()
    checkpoint = read_checkpoint(folder, limits)
    weights = load_weights(
        checkpoint, dtype=dtype, limits=limits, progress=lambda share: None, form=PlainMatrix
    )
    return BatchVerifier(checkpoint.config, weights)


def open_kv(verifier: BatchVerifier, B: int, num_slots: int) -> BatchKv:
    return BatchKv(
        [
            torch.zeros(2, B, shape.num_kv_heads, num_slots, shape.head_dim, dtype=verifier.dtype)
            if shape.kv_source == i
            else None
            for i, shape in enumerate(verifier.config.layers)
        ]
    )


@torch.inference_mode()
def forward(
    verifier: BatchVerifier, kv: BatchKv, ids: Tensor, first: Tensor, taps: Sequence[int] = ()
) -> tuple[Tensor, list[Tensor]]:
    """Rows [B, T] behind `first` [B] positions each: the last hidden state, normed, and the taps.

    All [B, T, hidden_size].  Rows that pad a shorter sequence are written over by what follows it.
    """
    c, weights = verifier.config, verifier.weights
    B, T = ids.shape
    positions = first[:, None] + torch.arange(T)
    end = int(positions.max()) + 1
    x = weights.embedding[ids.flatten()]
    if c.embedding_scale is not None:
        x = x * torch.tensor(c.embedding_scale, dtype=x.dtype)
    own = None
    if weights.per_layer is not None:
        own = per_layer_inputs(c, weights.per_layer, ids.flatten(), x)
    shared = {t: _shared(verifier, t, positions, end) for t in dict.fromkeys(c.layer_types)}
    found: dict[int, Tensor] = {}
    for i, layer in enumerate(weights.layers):
        cos, sin, mask = shared[c.layer_types[i]]
        shape = c.layers[i]
        heads = layer_heads(c, layer, x, i, cos, sin).view(B, T, -1, shape.head_dim)
        held = kv.layers[shape.kv_source]
        assert held is not None
        if shape.kv_source == i:
            _write(held, heads[:, :, c.num_heads :], positions)
        q = heads[:, :, : c.num_heads]
        x = after_attention(c, layer, x, _attend(q, held[..., :end, :], mask, c), i, own)
        if i in taps:
            found[i] = x.view(B, T, -1)
    return rms_norm(x, weights.norm).view(B, T, -1), [found[i] for i in taps]


def logits_of(verifier: BatchVerifier, hidden: Tensor) -> Tensor:
    """[..., vocab_size], float32, of last hidden states [..., hidden_size]."""
    logits: Tensor = verifier.weights.head(hidden).float()
    cap = verifier.config.logit_cap
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _shared(
    verifier: BatchVerifier, layer_type: str, positions: Tensor, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What layers of one type share: cos, sin, and [B, 1, T, end], 0 where a row may look."""
    c = verifier.config
    shape = next(s for s in c.layers if s.layer_type == layer_type)
    turn = turn_of(positions.flatten(), verifier.weights.inv_freq[layer_type], torch.float32)
    num_rotated = c.num_heads + shape.num_kv_heads
    cos = torch.ones(
        positions.numel(), num_rotated + shape.num_kv_heads, shape.head_dim, dtype=verifier.dtype
    )
    sin = torch.zeros_like(cos)
    cos[:, :num_rotated] = turn.cos.to(cos.dtype)
    sin[:, :num_rotated] = turn.sin.to(cos.dtype)
    ahead = positions[..., None] - torch.arange(end)
    seen = ahead >= 0
    if layer_type == "sliding_attention":
        assert c.sliding_window is not None
        seen &= ahead < c.sliding_window
    mask = torch.zeros(seen.shape, dtype=verifier.dtype).masked_fill_(~seen, -torch.inf)
    return cos, sin, mask[:, None]


def _write(held: Tensor, heads: Tensor, positions: Tensor) -> None:
    """heads: [B, T, 2 * num_kv_heads, head_dim]."""
    k, v = heads.chunk(2, 2)
    rows = torch.arange(len(heads))[:, None]
    held[0].transpose(1, 2)[rows, positions] = k
    held[1].transpose(1, 2)[rows, positions] = v


def _attend(q: Tensor, held: Tensor, mask: Tensor, config: ModelConfig) -> Tensor:
    """[B * T, num_heads * head_dim] for q [B, T, num_heads, head_dim]."""
    B, T, num_heads, head_dim = q.shape
    num_kv_heads = held.shape[2]
    group = num_heads // num_kv_heads
    # The query heads of one K/V head become rows of one product.
    rows = q.view(B, T, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    mixed: Tensor = F.scaled_dot_product_attention(
        rows.reshape(B, num_kv_heads, group * T, head_dim),
        held[0],
        held[1],
        attn_mask=mask if group == 1 else mask.repeat(1, 1, group, 1),
        scale=config.attention_scale,
    )
    mixed = mixed.view(B, num_kv_heads, group, T, head_dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(B * T, num_heads * head_dim)


__all__ = [
    "BatchKv",
    "BatchVerifier",
    "forward",
    "load_batch_verifier",
    "logits_of",
    "open_kv",
]
