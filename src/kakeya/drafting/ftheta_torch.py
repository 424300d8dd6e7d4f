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
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F

from kakeya.compute.ropes_torch import Turn, rotate, turn_of
from kakeya.compute.torch_arrays import from_torch
from kakeya.compute.weight_files import readable
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_torch import TorchContext
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter
from kakeya.drafting.dflash_torch import block_hidden, embed
from kakeya.drafting.dflash_weights_torch import DflashWeights
from kakeya.drafting.drafter import LayerBank, RestorePlan
from kakeya.drafting.ftheta_file import MATRICES, Target, find_maps
from kakeya.wire.tensor import WireArray

# The prompt is read in pieces of so many positions that do not see one another: one short job
# each, and a long prompt costs no more a position than a short one.
PIECE_LEN = 64


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
        evicted = range(plan.sink, max(plan.sink, len(plan.prompt_ids) - plan.window))
        layers = wanted_layers(self.maps.target, plan) if evicted else []
        if not layers:
            return
        is_seeded = context is not None and context_len >= evicted.stop
        pieces = []
        for start in range(evicted.start - evicted.start % PIECE_LEN, evicted.stop, PIECE_LEN):
            end = min(start + PIECE_LEN, len(plan.prompt_ids))
            with torch.inference_mode():
                rows = self._rows(
                    drafter, plan.prompt_ids, context if is_seeded else None, start, end
                )
                kept = slice(max(evicted.start - start, 0), min(evicted.stop, end) - start)
                pieces.append(rows[kept, layers])
            yield None
        for i, layer in enumerate(layers):
            with torch.inference_mode():
                k, v = torch.cat([piece[:, i] for piece in pieces]).unbind(1)
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


def wanted_layers(target: Target, plan: RestorePlan) -> list[int]:
    """Layers whose rows could attend to an evicted position, and that are not left out."""
    wanted = []
    for i, layer_type in enumerate(target.layer_types):
        if layer_type == "full_attention":
            needs = not plan.omits_full_layers
        else:
            needs = target.sliding_window is None or target.sliding_window > plan.window
        if needs:
            wanted.append(i)
    return wanted


def load_restorer(folder: Path) -> LinearRestorer | None:
    """The f_θ that lies beside a drafter; None without one.

    Raises Refused as find_maps does; whether it fits the drafter is demand_maps_fit's business.
    """
    found = find_maps(folder)
    if found is None:
        return None
    with readable(found.path), safe_open(found.path, framework="pt") as opened:
        maps = {name: opened.get_tensor(name).float() for name in MATRICES}
    return LinearRestorer(Maps(found.target, maps["alone"], maps["seeded"]))


def _wire(rows: Tensor, drafter: DflashTorchDrafter) -> WireArray:
    """[1, n, num_kv_heads, head_dim] in the drafter's dtype."""
    return WireArray(*from_torch(rows[None].to(drafter.weights.embedding.dtype).contiguous()))


__all__ = ["LinearRestorer", "Maps", "load_restorer", "prompt_features"]
