"""A decoder in plain torch calls: the verifier's forward pass.

Runs on the engine's own thread, under inference mode.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kakeya.compute.torch_arrays import to_torch
from kakeya.config.verifying import VerifyingLimits
from kakeya.verifying.attention_torch import queries_for
from kakeya.verifying.banks import demand_fit
from kakeya.verifying.demands import (
    demand_aux_layers,
    demand_block,
    demand_chunk,
    demand_forgettable,
    demand_plan,
    demand_rewindable,
    demand_room,
    demand_writable,
)
from kakeya.verifying.kv_torch import TorchKv
from kakeya.verifying.layers_torch import (
    Pass,
    TypePass,
    kv_heads,
    per_layer_inputs,
    rms_norm,
    run_layer,
)
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.rows import choose
from kakeya.verifying.slots import LayerKind, forgettable_from, kv_values, layer_kinds
from kakeya.verifying.verifier import Bank, Geometry, Kv, KvPlan, Rows
from kakeya.verifying.weights_torch import DTYPES, Weights
from kakeya.verifying.window import evicted_by, reach_after_restore

# Rotations are computed this many positions at a time, always the same ones together, so that a
# position's angles are the same to the bit whenever they are asked for.
_ROPE_BLOCK_LEN = 1024


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
        # By layer type: cos and sin of every position so far asked for.
        self._rotations = {
            layer_type: _rotations(inv_freq, 0, self._dtype)
            for layer_type, inv_freq in weights.inv_freq.items()
        }

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
            kv_shapes=tuple(
                (shape.num_kv_heads, shape.head_dim) if shape.kv_source == i else None
                for i, shape in enumerate(c.layers)
            ),
        )

    @property
    def _slack(self) -> int:
        """Rows that one pass may write ahead."""
        return max(self._limits.max_block_len, self._limits.max_prefill_chunk_len)

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
        demand_plan(plan, self.config)
        held = sum(kv.resident_bytes for kv in self._open)
        demand_room(self.kv_bytes(plan), held_bytes=held, limits=self._limits)
        self._grow_rotations(plan.max_len)
        kv = TorchKv(plan, self._kinds(plan), layers=self.config.layers, dtype=self._dtype)
        self._open.add(kv)
        return kv

    def kv_bytes(self, plan: KvPlan) -> int:
        """What an open K/V of this plan takes, without allocating it."""
        return kv_values(self.config.layers, self._kinds(plan)) * self._dtype.itemsize

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
        demand_block(ids, self._limits)
        return self._rows(kv, ids, want_logits=want_logits, aux_layers=aux_layers)

    def denoise(self, kv: Kv, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [rows, vocab_size] of a block whose rows see one another; nothing is appended."""
        assert isinstance(kv, TorchKv)
        demand_block(ids, self._limits)
        with torch.inference_mode():
            x, _ = self._layers(kv, ids, aux_layers=(), is_prefill=False, sees_block=True)
            logits: NDArray[np.float32] = self._logits(x).numpy()
        self.trim(kv, kv.length - len(ids))
        return logits

    def prefill(
        self, kv: Kv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()
    ) -> tuple[NDArray[np.generic], ...]:
        """Append one chunk of the prompt; what follows it is not computed."""
        assert isinstance(kv, TorchKv)
        demand_chunk(ids, self._limits)
        demand_aux_layers(aux_layers, self.config)
        with torch.inference_mode():
            _, taps = self._layers(kv, ids, aux_layers=aux_layers, is_prefill=True)
            return tuple(_to_numpy(taps[layer]) for layer in aux_layers)

    def read(self, kv: Kv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()) -> Rows:
        """Append one chunk of the prompt and say what follows each id."""
        assert isinstance(kv, TorchKv)
        demand_chunk(ids, self._limits)
        return self._rows(kv, ids, want_logits=True, aux_layers=aux_layers)

    def restore(self, kv: Kv, banks: Sequence[Bank]) -> None:
        """Put `banks` in the place of the evicted positions; all of the prompt must be read."""
        assert isinstance(kv, TorchKv)
        demand_fit(banks, kv.plan, self.geometry, length=kv.length)
        with torch.inference_mode():
            for bank in banks:
                self._write_bank(kv, bank, evicted_by(kv.plan))
        for layer_type, kind in kv.kinds.items():
            slide = self.config.sliding_window if layer_type == "sliding_attention" else None
            kind.reaches(reach_after_restore(kv.plan, slide))
        kv.forgettable_from = kv.length
        if evicted_by(kv.plan):
            kv.untouched_len = evicted_by(kv.plan).start

    def _write_bank(self, kv: TorchKv, bank: Bank, evicted: range) -> None:
        """K normed and rotated, V normed where the layer does so, where positions have a slot."""
        layer_type = self.config.layer_types[bank.layer]
        kept, slots = kv.kinds[layer_type].held(evicted)
        rows = torch.from_numpy(kept + (evicted.start if len(bank.k) > len(evicted) else 0))
        k = to_torch(bank.dtype, bank.k)[rows].to(self._dtype)
        v = to_torch(bank.dtype, bank.v)[rows].to(self._dtype)
        cos, sin = self._rotations[layer_type]
        at = torch.from_numpy(kept + evicted.start)
        heads = kv_heads(self.config, self._weights.layers[bank.layer], k, v, cos[at], sin[at])
        kv.slabs[bank.layer][:, torch.from_numpy(slots)] = heads.transpose(0, 1)

    def rewind(self, kv: Kv, plan: KvPlan, length: int, *, keep: bool) -> Kv:
        """A K/V of `plan` that begins with the first `length` positions of `kv`.

        keep: `kv` stays, and its rows are copied; else it is used up.  Raises Refused as `open`
        does, and where these positions are no longer, or not read as `plan` would read them.
        """
        assert isinstance(kv, TorchKv)
        demand_plan(plan, self.config)
        kinds = self._kinds(plan)
        first_round_len = min(kind.first_round_len for kind in kinds.values())
        demand_rewindable(kv, plan, length, first_round_len=first_round_len)
        others = sum(each.resident_bytes for each in self._open if keep or each is not kv)
        demand_room(self.kv_bytes(plan), held_bytes=others, limits=self._limits)
        self._grow_rotations(plan.max_len)
        begun = kv
        if keep:
            begun = TorchKv(plan, kinds, layers=self.config.layers, dtype=self._dtype)
            self._open.add(begun)
        begun.begin(kv, plan, kinds, length)
        begun.forgettable_from = forgettable_from(kinds, 0, length=length, slack=self._slack)
        return begun

    def trim(self, kv: Kv, length: int) -> None:
        """Forget positions ≥ `length`.  Raises Refused(OUT_OF_RANGE) where a ring has lost some."""
        assert isinstance(kv, TorchKv)
        demand_forgettable(kv, length)
        kv.length = length

    def _rows(
        self, kv: TorchKv, ids: Sequence[int], *, want_logits: bool, aux_layers: Sequence[int]
    ) -> Rows:
        demand_aux_layers(aux_layers, self.config)
        with torch.inference_mode():
            x, taps = self._layers(kv, ids, aux_layers=aux_layers, is_prefill=False)
            logits: NDArray[np.float32] = self._logits(x).numpy()
            aux = tuple(_to_numpy(taps[layer]) for layer in aux_layers)
        return choose(logits, want_logits=want_logits, aux=aux)

    def _kinds(self, plan: KvPlan) -> dict[str, LayerKind]:
        return layer_kinds(
            plan,
            self.config.layer_types,
            sliding_window=self.config.sliding_window,
            slack=self._slack,
        )

    def _layers(
        self,
        kv: TorchKv,
        ids: Sequence[int],
        *,
        aux_layers: Sequence[int],
        is_prefill: bool,
        sees_block: bool = False,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run all layers: the last hidden state [T, hidden_size], and the tapped outputs."""
        demand_writable(kv, ids, self.config)
        shared, x = self._begin(kv, ids, sees_block)
        taps: dict[int, Tensor] = {}
        num_needed = self._num_needed(aux_layers) if is_prefill else self.config.num_layers
        for i, layer in enumerate(self._weights.layers[:num_needed]):
            # In a prefill nobody reads what the last layer puts out, only its K and V.
            kv_only = is_prefill and i == num_needed - 1 and i not in aux_layers
            x = run_layer(self.config, layer, x, kv, i, shared, kv_only=kv_only)
            if i in aux_layers:
                taps[i] = x
        kv.length += len(ids)
        kv.forgettable_from = forgettable_from(
            kv.kinds, kv.forgettable_from, length=kv.length, slack=self._slack
        )
        return x, taps

    def _num_needed(self, aux_layers: Sequence[int]) -> int:
        """Layers to run when only K, V and the tapped outputs are read."""
        sources = {shape.kv_source for shape in self.config.layers}
        return 1 + max(*sources, *aux_layers, -1)

    def _begin(self, kv: TorchKv, ids: Sequence[int], sees_block: bool) -> tuple[Pass, Tensor]:
        """What the layers share, and the embedded ids: [T, hidden_size]."""
        c = self.config
        index = torch.tensor(list(ids), dtype=torch.int64)
        x = self._weights.embedding[index]
        if c.embedding_scale is not None:
            x = x * torch.tensor(c.embedding_scale, dtype=self._dtype)
        types = {t: self._type_pass(kv, t, len(ids), sees_block) for t in kv.kinds}
        per_layer = self._weights.per_layer
        if per_layer is None:
            return Pass(types, None), x
        return Pass(types, per_layer_inputs(c, per_layer, index, x)), x

    def _type_pass(self, kv: TorchKv, layer_type: str, num_rows: int, sees_block: bool) -> TypePass:
        shape = next(s for s in self.config.layers if s.layer_type == layer_type)
        placement = kv.kinds[layer_type].place(kv.length, num_rows, sees_block=sees_block)
        rows = slice(kv.length, kv.length + num_rows)
        num_heads, num_kv_heads = self.config.num_heads, shape.num_kv_heads
        num_rotated = num_heads + num_kv_heads
        cos = torch.ones(num_rows, num_rotated + num_kv_heads, shape.head_dim, dtype=self._dtype)
        sin = torch.zeros_like(cos)
        known_cos, known_sin = self._rotations[layer_type]
        cos[:, :num_rotated] = known_cos[rows]
        sin[:, :num_rotated] = known_sin[rows]
        queries = queries_for(
            placement,
            num_rows,
            num_kv_heads=num_kv_heads,
            group=num_heads // num_kv_heads,
            head_dim=shape.head_dim,
            dtype=self._dtype,
        )
        return TypePass(cos, sin, placement, queries)

    def _logits(self, x: Tensor) -> Tensor:
        """[T, vocab_size], float32, of the last hidden state."""
        logits = self._weights.head(rms_norm(x, self._weights.norm)).to(torch.float32)
        cap = self.config.logit_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _grow_rotations(self, max_len: int) -> None:
        for layer_type, (cos, sin) in self._rotations.items():
            inv_freq = self._weights.inv_freq[layer_type]
            while len(cos) < max_len:
                more_cos, more_sin = _rotations(inv_freq, len(cos), self._dtype)
                cos, sin = torch.cat((cos, more_cos)), torch.cat((sin, more_sin))
            self._rotations[layer_type] = cos, sin


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
