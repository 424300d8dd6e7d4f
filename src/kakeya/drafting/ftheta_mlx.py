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
from typing import Any

import mlx.core as mx
import numpy as np

from kakeya.compute.mlx_arrays import from_mlx
from kakeya.compute.ropes_mlx import Turn, rotate, turn_of
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_context_mlx import MlxContext
from kakeya.drafting.dflash_drafter_mlx import DflashMlxDrafter
from kakeya.drafting.dflash_mlx import block_hidden, embed
from kakeya.drafting.dflash_weights_mlx import DflashWeights
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
    alone: mx.array
    seeded: mx.array


class LinearRestorer:
    """The `Restorer` of one file."""

    def __init__(self, maps: Maps) -> None:
        self.maps = maps

    def restore(
        self,
        drafter: DflashMlxDrafter,
        plan: RestorePlan,
        context: MlxContext | None,
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
            rows = self._rows(drafter, plan.prompt_ids, known, piece.start, piece.stop)
            kept = slice(
                max(evicted.start, piece.start) - piece.start,
                min(evicted.stop, piece.stop) - piece.start,
            )
            found.append(rows[kept][:, mx.array(layers)])
            mx.eval(found[-1])
            yield None
        for i, layer in enumerate(layers):
            both = mx.concatenate([rows[:, i] for rows in found])
            yield LayerBank(layer, _wire(both[:, 0], drafter), _wire(both[:, 1], drafter))

    def _rows(
        self,
        drafter: DflashMlxDrafter,
        prompt_ids: Sequence[int],
        context: MlxContext | None,
        start: int,
        end: int,
    ) -> mx.array:
        """[end - start, layers, 2, num_kv_heads, head_dim], float32."""
        ids = mx.array(list(prompt_ids[start:end]))
        found = [prompt_features(drafter.config, drafter.weights, ids, start)]
        matrix = self.maps.alone
        if context is not None:
            known = min(end, context.num_slots)
            rows = drafter.read(context, start, known)
            seen = mx.concatenate([rows.k.flatten(1), rows.v.flatten(1)], axis=1)
            # Rows that no aux was sent for are not evicted either.
            found.append(mx.pad(seen, [(0, end - known), (0, 0)]))
            matrix = self.maps.seeded
        return project(
            matrix,
            mx.concatenate([each.astype(mx.float32) for each in found], axis=1),
            self.maps.target,
        )


def prompt_features(
    config: DflashConfig, weights: DflashWeights, ids: mx.array, start: int
) -> mx.array:
    """[T, layers * 2 * num_kv_heads * head_dim]: every layer's K, not rotated, and V.

    ids: [T], one piece of the prompt, at positions start …; rows see the piece's earlier
    rows and themselves.
    """
    positions = np.arange(start, start + ids.shape[-1])
    turn = turn_of(positions, weights.inv_freq, weights.embedding.dtype)
    back = Turn(turn.cos, -turn.sin)
    found: list[mx.array] = []

    def attend(layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        del layer
        found.append(mx.concatenate([rotate(k, back), v], axis=-2).flatten(-2))
        mixed = mx.fast.scaled_dot_product_attention(
            q.swapaxes(0, 1)[None],
            k.swapaxes(0, 1)[None],
            v.swapaxes(0, 1)[None],
            scale=config.head_dim**-0.5,
            mask="causal",
        )
        return mixed[0].swapaxes(0, 1).flatten(-2)

    block_hidden(config, weights, embed(config, weights, ids), turn, attend)
    return mx.concatenate(found, axis=-1)


def project(matrix: mx.array, features: mx.array, target: Target) -> mx.array:
    """features: [T, n], float32 → [T, layers, 2, num_kv_heads, head_dim]."""
    out = features @ matrix[:, :-1].T + matrix[:, -1]
    shape = (len(target.layer_types), 2, target.num_kv_heads, target.head_dim)
    return out.reshape(len(features), *shape)


def load_restorer(folder: Path) -> LinearRestorer | None:
    """The f_θ that lies beside a drafter; None without one.

    Raises Refused(DATA_LOSS, INVALID_ARGUMENT) for a file that is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        opened, header = loaded
        maps = {name: opened[name].astype(mx.float32) for name in ("alone", "seeded")}
        mx.eval(maps)
    except (RuntimeError, KeyError) as error:  # what MLX raises for a file it cannot read
        raise Refused("DATA_LOSS", f"{FILE} cannot be read: {error}") from None
    target = read_target(header, {name: num_rows(each.shape) for name, each in maps.items()})
    return LinearRestorer(Maps(target, maps["alone"], maps["seeded"]))


def _wire(rows: mx.array, drafter: DflashMlxDrafter) -> WireArray:
    """[1, n, num_kv_heads, head_dim] in the drafter's dtype."""
    return WireArray(*from_mlx(rows[None].astype(drafter.weights.embedding.dtype)))


__all__ = ["LinearRestorer", "Maps", "load_restorer", "prompt_features"]
