"""A Llama or Qwen3 decoder in plain torch calls: the verifier's forward pass.

One function per part, no module tree.  Runs on the engine's own thread, under inference mode.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kakeya.compute.torch_arrays import to_torch
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import demand
from kakeya.verifying.attention_torch import Queries, attend, queries_for
from kakeya.verifying.banks import demand_fit
from kakeya.verifying.kv_torch import LayerKind, Placement, TorchKv, layer_kinds, write
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.rows import choose
from kakeya.verifying.verifier import Bank, Geometry, Kv, KvPlan, Rows
from kakeya.verifying.weights_torch import DTYPES, LayerWeights, Norm, Weights
from kakeya.verifying.window import evicted_by, reach_after_restore

# Rotations are computed this many positions at a time, always the same ones together, so that a
# position's angles are the same to the bit whenever they are asked for.
_ROPE_BLOCK_LEN = 1024


@dataclass(frozen=True, slots=True)
class Pass:
    """What all layers of one forward pass share."""

    cos: Tensor  # [T, num_heads + 2 * num_kv_heads, head_dim]; 1 at V's heads
    sin: Tensor  # the same shape, first halves negated; 0 at V's heads
    placements: dict[str, Placement]  # by layer type
    queries: Queries


class TorchVerifier:
    """The `Verifier` over torch weights.  All methods run on one thread."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        model_id: str,
        dtype: str,
        limits: VerifyingLimits,
    ) -> None:
        self.model_id = model_id
        self.dtype = dtype
        self.margin_bound = float("inf")  # until measured: every choice is decided again
        self.config = config
        self._weights = weights
        self._limits = limits
        self._dtype = DTYPES[dtype]
        self._open: weakref.WeakSet[TorchKv] = weakref.WeakSet()
        self._cos, self._sin = _rotations(weights.inv_freq, 0, self._dtype)

    @property
    def geometry(self) -> Geometry:
        c = self.config
        return Geometry(
            vocab_size=c.vocab_size,
            hidden_size=c.hidden_size,
            num_layers=c.num_layers,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            max_context_len=c.max_context_len,
            layer_types=c.layer_types,
            sliding_window=c.sliding_window,
        )

    @property
    def prefill_chunk_len(self) -> int:
        return self._limits.max_prefill_chunk_len

    @property
    def max_block_len(self) -> int:
        """Rows of one forward pass."""
        return self._limits.max_block_len

    def open(self, plan: KvPlan) -> Kv:
        """An empty K/V.  Raises Refused: OUT_OF_RANGE beyond the context, RESOURCE_EXHAUSTED
        where this K/V and the open ones together would pass the limit."""
        c = self.config
        demand(
            1 <= plan.max_len <= c.max_context_len,
            "OUT_OF_RANGE",
            f"max_len is {plan.max_len}, the model's context is 1 to {c.max_context_len}",
        )
        demand(
            plan.mode == "full" or (plan.window >= 1 and plan.sink >= 0),
            "INVALID_ARGUMENT",
            f"sink is {plan.sink} and window {plan.window}, they must be at least 0 and 1",
        )
        demand(
            plan.mode != "restored" or 1 <= plan.prompt_len <= plan.max_len,
            "INVALID_ARGUMENT",
            f"prompt_len is {plan.prompt_len}, it must be from 1 to {plan.max_len}",
        )
        held = sum(kv.resident_bytes for kv in self._open)
        wanted = self.kv_bytes(plan)
        demand(
            held + wanted <= self._limits.max_kv_bytes,
            "RESOURCE_EXHAUSTED",
            f"the K/V takes {wanted} bytes, {held} are held, "
            f"the limit is {self._limits.max_kv_bytes}",
        )
        self._grow_rotations(plan.max_len)
        kv = TorchKv(
            plan,
            self._kinds(plan),
            layer_types=c.layer_types,
            num_kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            dtype=self._dtype,
        )
        self._open.add(kv)
        return kv

    def kv_bytes(self, plan: KvPlan) -> int:
        """What an open K/V of this plan takes, without allocating it."""
        c = self.config
        kinds = self._kinds(plan)
        num_slots = sum(kinds[t].num_slots for t in c.layer_types)
        return 2 * num_slots * c.num_kv_heads * c.head_dim * self._dtype.itemsize

    def forward(
        self,
        kv: Kv,
        ids: Sequence[int],
        *,
        want_logits: bool = False,
        aux_layers: Sequence[int] = (),
    ) -> Rows:
        """Append `ids` and say what follows each.  aux is float32, or the bits of bfloat16."""
        assert isinstance(kv, TorchKv)
        demand(
            len(ids) <= self._limits.max_block_len,
            "INVALID_ARGUMENT",
            f"the block has {len(ids)} rows, the limit is {self._limits.max_block_len}",
        )
        self._demand_layers(aux_layers)
        with torch.inference_mode():
            x, taps = self._layers(kv, ids, aux_layers=aux_layers, is_prefill=False)
            x = _rms_norm(x, self._weights.norm)
            logits: NDArray[np.float32] = self._weights.head(x).to(torch.float32).numpy()
            aux = tuple(_to_numpy(taps[layer]) for layer in aux_layers)
        return choose(logits, want_logits=want_logits, aux=aux)

    def prefill(
        self, kv: Kv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()
    ) -> tuple[NDArray[np.generic], ...]:
        """Append one chunk of the prompt; what follows it is not computed."""
        assert isinstance(kv, TorchKv)
        demand(
            len(ids) <= self._limits.max_prefill_chunk_len,
            "INVALID_ARGUMENT",
            f"the chunk has {len(ids)} tokens, the limit is {self._limits.max_prefill_chunk_len}",
        )
        self._demand_layers(aux_layers)
        with torch.inference_mode():
            _, taps = self._layers(kv, ids, aux_layers=aux_layers, is_prefill=True)
            return tuple(_to_numpy(taps[layer]) for layer in aux_layers)

    def restore(self, kv: Kv, banks: Sequence[Bank]) -> None:
        """Put `banks` in the place of the evicted positions; all of the prompt must be read."""
        assert isinstance(kv, TorchKv)
        demand_fit(banks, kv.plan, self.geometry, length=kv.length)
        evicted = evicted_by(kv.plan)
        with torch.inference_mode():
            for bank in banks:
                self._write_bank(kv, bank, evicted)
        for layer_type in kv.kinds:
            slide = self.config.sliding_window if layer_type == "sliding_attention" else None
            kv.kinds[layer_type].reaches(reach_after_restore(kv.plan, slide))
        kv.forgettable_from = kv.length

    def _write_bank(self, kv: TorchKv, bank: Bank, evicted: range) -> None:
        """K through k_norm and rotation, V as it is, where the positions still have a slot."""
        kept, slots = kv.kinds[self.config.layer_types[bank.layer]].held(evicted)
        rows = torch.from_numpy(kept + (evicted.start if len(bank.k) > len(evicted) else 0))
        k = to_torch(bank.dtype, bank.k)[rows].to(torch.float32)
        v = to_torch(bank.dtype, bank.v)[rows].to(self._dtype)
        norm = self._weights.layers[bank.layer].qk_norm
        if norm is not None:
            k = _rms_norm(k, Norm(norm.weight[self.config.num_heads :], norm.eps))
        at = torch.from_numpy(kept + evicted.start)
        half = k.shape[-1] // 2
        swapped = torch.cat((k[..., half:], k[..., :half]), -1)
        k = k * self._cos[at].float() + swapped * self._sin[at].float()
        both = torch.cat((k.to(self._dtype), v), 1).transpose(0, 1)
        kv.slabs[bank.layer][:, torch.from_numpy(slots)] = both

    def trim(self, kv: Kv, length: int) -> None:
        """Forget positions ≥ `length`.  Raises Refused(OUT_OF_RANGE) beyond the last pass."""
        assert isinstance(kv, TorchKv)
        demand(
            kv.forgettable_from <= length <= kv.length,
            "OUT_OF_RANGE",
            f"length is {length}, it must be from {kv.forgettable_from} to {kv.length}",
        )
        kv.length = length

    def _kinds(self, plan: KvPlan) -> dict[str, LayerKind]:
        return layer_kinds(
            plan,
            self.config.layer_types,
            sliding_window=self.config.sliding_window,
            slack=max(self._limits.max_block_len, self._limits.max_prefill_chunk_len),
        )

    def _layers(
        self, kv: TorchKv, ids: Sequence[int], *, aux_layers: Sequence[int], is_prefill: bool
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers: the last hidden state [T, hidden_size], and the tapped outputs."""
        self._demand_writable(kv, ids)
        shared = self._pass(kv, len(ids))
        x = self._weights.embedding[torch.tensor(list(ids), dtype=torch.int64)]
        taps: dict[int, Tensor] = {}
        last = self.config.num_layers - 1
        for i, layer in enumerate(self._weights.layers):
            # In a prefill hardly anybody reads what the last layer puts out, only its K and V.
            kv_only = is_prefill and i == last and last not in aux_layers
            x = _layer(self.config, layer, x, kv, i, shared, kv_only=kv_only)
            if i in aux_layers:
                taps[i] = x
        kv.forgettable_from = kv.length
        kv.length += len(ids)
        return x, taps

    def _demand_layers(self, aux_layers: Sequence[int]) -> None:
        for layer in aux_layers:
            demand(
                0 <= layer < self.config.num_layers,
                "INVALID_ARGUMENT",
                f"aux layer is {layer}, the model has layers 0 to {self.config.num_layers - 1}",
            )

    def _demand_writable(self, kv: TorchKv, ids: Sequence[int]) -> None:
        demand(len(ids) > 0, "INVALID_ARGUMENT", "there are no ids, at least 1 is needed")
        vocab_size = self.config.vocab_size
        demand(
            min(ids) >= 0 and max(ids) < vocab_size,
            "INVALID_ARGUMENT",
            f"ids reach from {min(ids)} to {max(ids)}, the vocabulary is 0 to {vocab_size - 1}",
        )
        demand(
            kv.length + len(ids) <= kv.plan.max_len,
            "OUT_OF_RANGE",
            f"{kv.length} positions and {len(ids)} more pass the plan's {kv.plan.max_len}",
        )

    def _pass(self, kv: TorchKv, num_rows: int) -> Pass:
        c = self.config
        rows = slice(kv.length, kv.length + num_rows)
        placements = {t: kind.place(kv.length, num_rows) for t, kind in kv.kinds.items()}
        num_rotated = c.num_heads + c.num_kv_heads
        cos = torch.ones(num_rows, num_rotated + c.num_kv_heads, c.head_dim, dtype=self._dtype)
        sin = torch.zeros_like(cos)
        cos[:, :num_rotated] = self._cos[rows]
        sin[:, :num_rotated] = self._sin[rows]
        queries = queries_for(
            placements,
            num_rows,
            num_kv_heads=c.num_kv_heads,
            group=c.num_heads // c.num_kv_heads,
            head_dim=c.head_dim,
            dtype=self._dtype,
        )
        return Pass(cos, sin, placements, queries)

    def _grow_rotations(self, max_len: int) -> None:
        while len(self._cos) < max_len:
            cos, sin = _rotations(self._weights.inv_freq, len(self._cos), self._dtype)
            self._cos = torch.cat((self._cos, cos))
            self._sin = torch.cat((self._sin, sin))


def _layer(
    config: ModelConfig,
    weights: LayerWeights,
    x: Tensor,
    kv: TorchKv,
    index: int,
    shared: Pass,
    *,
    kv_only: bool,
) -> Tensor:
    """One decoder layer over x: [T, hidden_size]; writes its K and V first."""
    c = config
    T, num_rotated = len(x), c.num_heads + c.num_kv_heads
    layer_type = c.layer_types[index]
    qkv = weights.qkv(_rms_norm(x, weights.input_norm))
    qkv = qkv.view(T, num_rotated + c.num_kv_heads, c.head_dim)
    if weights.qk_norm is not None:
        qk = _rms_norm(qkv[:, :num_rotated], weights.qk_norm)
        qkv = torch.cat((qk, qkv[:, num_rotated:]), 1)
    qkv = _rotate(qkv, shared)
    placement = shared.placements[layer_type]
    write(kv.slabs[index], qkv[:, c.num_heads :].transpose(0, 1), placement)
    if kv_only:
        return x
    k, v = kv.readable(index, placement.num_slots)
    mixed = attend(qkv[:, : c.num_heads], k, v, shared.queries.masks[layer_type], shared.queries)
    x = weights.out(mixed).add_(x)
    gate_up = weights.gate_up(_rms_norm(x, weights.mlp_norm))
    gate, up = gate_up[:, : c.intermediate_size], gate_up[:, c.intermediate_size :]
    return weights.down(F.silu(gate).mul_(up)).add_(x)


def _rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """x over its root mean square on the last axis, times the weight; in float32 throughout."""
    wide = x if x.dtype == torch.float32 else x.to(torch.float32)
    scale = (wide * wide).sum(-1, keepdim=True).add_(norm.eps).rsqrt_()
    out = (wide * scale).mul_(norm.weight)
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def _rotate(qkv: Tensor, shared: Pass) -> Tensor:
    """qkv: [T, heads, head_dim], turned by its row's position; halves are the pairs (as in HF)."""
    half = qkv.shape[-1] // 2
    swapped = torch.cat((qkv[..., half:], qkv[..., :half]), -1)
    return (qkv * shared.cos).addcmul_(swapped, shared.sin)


def _rotations(inv_freq: Tensor, first: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of positions first … first + _ROPE_BLOCK_LEN - 1: [block, 1, head_dim].

    The first half of sin is negated, so that a rotation is qk * cos + roll(qk) * sin.
    """
    positions = torch.arange(first, first + _ROPE_BLOCK_LEN, dtype=torch.float32)
    angles = torch.outer(positions, inv_freq)
    cos, sin = angles.cos(), angles.sin()
    halves = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return halves[0].unsqueeze(1).to(dtype), halves[1].unsqueeze(1).to(dtype)


def _to_numpy(rows: Tensor) -> NDArray[np.generic]:
    """A copy the caller may keep: float32 as it is, bfloat16 as its uint16 bits."""
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.uint16).numpy().copy()
    return rows.numpy().copy()
