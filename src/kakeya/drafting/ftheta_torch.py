"""f_θ: a verifier's K/V at evicted positions, projected from what its drafter computes.

Two linear maps a layer.  `alone` takes the drafter's layers run over the prompt's embeddings;
`seeded` takes the drafter's context besides, which was made from the verifier's own hidden
states.  Both were fitted by least squares (training/ftheta_torch); K is meant for the verifier's
k_norm, V as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F

from kakeya.compute.ropes_torch import Turn, rotate, turn_of
from kakeya.compute.torch_arrays import from_torch
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_torch import TorchContext
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter
from kakeya.drafting.dflash_torch import block_hidden, embed
from kakeya.drafting.dflash_weights_torch import DflashWeights
from kakeya.drafting.drafter import LayerBank, RestorePlan
from kakeya.drafting.ftheta import (
    FILE,
    Target,
    evicted_positions,
    num_rows,
    pieces,
    read_target,
    wanted_layers,
)
from kakeya.errors import Refused
from kakeya.wire.tensor import WireArray


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """alone: [layers * 2 * num_kv_heads * head_dim, features + 1]; seeded: the same, features
    and context + 1.  Rows of a layer: K's heads, then V's; the last column is the constant."""

    target: Target
    alone: Tensor
    seeded: Tensor


class LinearRestorer:
    """The `Restorer` of one file."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps

    def restore(
        self,
        drafter: DflashTorchDrafter,
        plan: RestorePlan,
        context: TorchContext | None,
        context_len: int,
    ) -> Iterator[LayerBank | None]:
        """As `DflashDrafter.restore`."""
        evicted = evicted_positions(plan)
        layers = wanted_layers(self.maps.target, plan) if evicted else []
        if not layers:
            return
        is_seeded = context is not None and context_len >= evicted.stop
        known = context if is_seeded else None
        found = []
        for piece in pieces(evicted, len(plan.prompt_ids)):
            with torch.inference_mode():
                rows = self._rows(drafter, plan.prompt_ids, known, piece.start, piece.stop)
                kept = slice(
                    max(evicted.start, piece.start) - piece.start,
                    min(evicted.stop, piece.stop) - piece.start,
                )
                found.append(rows[kept, layers])
            yield None
        for i, layer in enumerate(layers):
            with torch.inference_mode():
                k, v = torch.cat([rows[:, i] for rows in found]).unbind(1)
                bank = LayerBank(layer, _wire(k, drafter), _wire(v, drafter))
            yield bank

    def _rows(
        self,
        drafter: DflashTorchDrafter,
        prompt_ids: Sequence[int],
        context: TorchContext | None,
        start: int,
        end: int,
    ) -> Tensor:
        """[end - start, layers, 2, num_kv_heads, head_dim], float32."""
        ids = torch.tensor(prompt_ids[start:end])
        found = [prompt_features(drafter.config, drafter.weights, ids, start)]
        matrix = self.maps.alone
        if context is not None:
            known = min(end, context.num_slots)
            rows = drafter.read(context, start, known)
            seen = torch.cat((rows.k.flatten(1), rows.v.flatten(1)), 1)
            # Rows that no aux was sent for are not evicted either.
            found.append(F.pad(seen, (0, 0, 0, end - known)))
            matrix = self.maps.seeded
        return project(matrix, torch.cat([each.float() for each in found], 1), self.maps.target)


def prompt_features(
    config: DflashConfig, weights: DflashWeights, ids: Tensor, start: int
) -> Tensor:
    """[..., T, layers * 2 * num_kv_heads * head_dim]: every layer's K, not rotated, and V.

    ids: [..., T], one piece of the prompt, at positions start …; rows see the piece's earlier
    rows and themselves.
    """
    turn = turn_of(torch.arange(start, start + ids.shape[-1]), weights.inv_freq, torch.float32)
    turn = Turn(turn.cos.to(weights.embedding.dtype), turn.sin.to(weights.embedding.dtype))
    back = Turn(turn.cos, -turn.sin)
    found: list[Tensor] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        del layer
        found.append(torch.cat((rotate(k, back), v), -2).flatten(-2))
        mixed: Tensor = F.scaled_dot_product_attention(
            q.transpose(-2, -3),
            k.transpose(-2, -3),
            v.transpose(-2, -3),
            is_causal=True,
            enable_gqa=q.shape[-2] != k.shape[-2],
        )
        return mixed.transpose(-2, -3).flatten(-2)

    block_hidden(config, weights, embed(config, weights, ids), turn, attend)
    return torch.cat(found, -1)


def project(matrix: Tensor, features: Tensor, target: Target) -> Tensor:
    """features: [T, n], float32 → [T, layers, 2, num_kv_heads, head_dim]."""
    out = features @ matrix[:, :-1].T + matrix[:, -1]
    shape = (len(target.layer_types), 2, target.num_kv_heads, target.head_dim)
    return out.view(len(features), *shape)


def load_restorer(folder: Path) -> LinearRestorer | None:
    """The f_θ that lies beside a drafter; None without one.

    Raises Refused(DATA_LOSS, INVALID_ARGUMENT) for a file that is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as opened:
            header = opened.metadata()
            maps = {name: opened.get_tensor(name).float() for name in ("alone", "seeded")}
    except SafetensorError as error:
        raise Refused("DATA_LOSS", f"{FILE} cannot be read: {error}") from None
    target = read_target(header, {name: num_rows(each.shape) for name, each in maps.items()})
    return LinearRestorer(Maps(target, maps["alone"], maps["seeded"]))


def _wire(rows: Tensor, drafter: DflashTorchDrafter) -> WireArray:
    """[1, n, num_kv_heads, head_dim] in the drafter's dtype."""
    return WireArray(*from_torch(rows[None].to(drafter.weights.embedding.dtype).contiguous()))


__all__ = ["LinearRestorer", "Maps", "load_restorer", "prompt_features"]
