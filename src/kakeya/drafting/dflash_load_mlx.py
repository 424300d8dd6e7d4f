"""From a checkpoint folder to a DFlash drafter in MLX.  Runs on the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from kakeya.compute.matmul_mlx import DenseMatrix
from kakeya.compute.mlx_arrays import arrays_in
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_checkpoint import (
    ID_MAP,
    DflashCheckpoint,
    drafter_bytes,
    find_verifier_ends,
    read_dflash_checkpoint,
)
from kakeya.drafting.dflash_config import VerifierShape, demand_fits
from kakeya.drafting.dflash_drafter_mlx import DflashMlxDrafter, Restorer
from kakeya.drafting.dflash_weights_mlx import DTYPES, DflashWeights, VerifierEnds, assemble
from kakeya.errors import Refused, demand


@dataclass(frozen=True, slots=True, eq=False)
class VerifierPart:
    """What a drafter needs of its verifier: the shape it must have, and its two ends.

    family: the verifier's model_type, "" where it is not known.
    """

    shape: VerifierShape
    ends: VerifierEnds
    family: str = ""


def load_drafter(
    folder: Path,
    *,
    verifier: VerifierPart | None,
    dtype: str,
    limits: DrafterLimits,
    model_id: str,
    restorer: Restorer | None = None,
    progress: Callable[[float], None],
) -> DflashMlxDrafter:
    """The drafter of a folder in the published DFlash or DFlash 2 layout.

    dtype: "float32" or "bfloat16", whatever the folder stores.  verifier: None where the folder
    brings embedding and head of its own.  progress gets the share done (0 … 1).  Raises Refused
    as read_dflash_checkpoint and demand_fits do, and RESOURCE_EXHAUSTED above the memory limit.
    """
    demand_dtype(dtype)
    checkpoint = read_dflash_checkpoint(folder, limits)
    config = checkpoint.config
    if verifier is not None:
        demand_fits(config, verifier.shape)
    num_bytes = resident_bytes(checkpoint, dtype)
    demand(
        num_bytes <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the weights take {num_bytes} bytes in {dtype}, the limit is {limits.max_weight_bytes}",
    )
    ends = None if verifier is None else verifier.ends
    weights = _read(checkpoint, ends, dtype, progress)
    return DflashMlxDrafter(config, weights, model_id=model_id, limits=limits, restorer=restorer)


def read_verifier_part(folder: Path, *, dtype: str, limits: DrafterLimits) -> VerifierPart:
    """Shape, embedding and head out of a verifier's checkpoint folder; nothing else is read.

    Raises Refused as the reading of a drafter's folder does.
    """
    demand_dtype(dtype)
    found = find_verifier_ends(folder, limits)
    reader = _Reader(found.files, list(found.names), DTYPES[dtype])
    read = [reader.tensor(name) for name in found.names]
    _evaluate(read)
    return VerifierPart(found.shape, VerifierEnds(read[0], read[-1]), found.family)


def demand_dtype(dtype: str) -> None:
    demand(
        dtype in DTYPES,
        "INVALID_ARGUMENT",
        f"dtype is {dtype!r}, supported are {', '.join(DTYPES)}",
    )


def resident_bytes(checkpoint: DflashCheckpoint, dtype: str) -> int:
    """Bytes the weights take in memory, the verifier's embedding and head with them."""
    return drafter_bytes(checkpoint, DTYPES[dtype].size)


class _Reader:
    """Arrays by name out of files that MLX reads when their values are asked for."""

    def __init__(self, files: Mapping[str, Path], names: list[str], dtype: mx.Dtype) -> None:
        self._dtype = dtype
        self._opened: dict[str, mx.array] = {}
        try:
            for path in sorted({files[name] for name in names}):
                loaded: Any = mx.load(str(path))
                self._opened |= loaded
        except RuntimeError as error:  # what MLX raises for a file it cannot read
            raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None

    def tensor(self, name: str) -> mx.array:
        """The array in the engine's dtype."""
        if name not in self._opened:
            raise Refused("DATA_LOSS", f"the weights cannot be read: {name} is gone")
        return self._opened[name].astype(mx.int64 if name == ID_MAP else self._dtype)


def _read(
    checkpoint: DflashCheckpoint,
    ends: VerifierEnds | None,
    dtype: str,
    progress: Callable[[float], None],
) -> DflashWeights:
    names = list(checkpoint.shapes)
    num_read = 0
    if ends is not None:
        kind = DTYPES[dtype]
        ends = VerifierEnds(ends.embedding.astype(kind), ends.head.astype(kind))
    reader = _Reader(checkpoint.files, names, DTYPES[dtype])

    def get(name: str) -> mx.array:
        nonlocal num_read
        num_read += 1
        # k, v and k_norm are read twice, so the share may run ahead.
        progress(min(1.0, num_read / (len(names) + 1)))
        found = reader.tensor(name)
        _evaluate(found)
        return found

    weights = assemble(checkpoint.config, get, names, ends=ends, form=DenseMatrix)
    _evaluate(arrays_in(weights))
    progress(1.0)
    return weights


def _evaluate(found: mx.array | list[mx.array]) -> None:
    """Compute the values now.  Raises Refused(DATA_LOSS) where a file changed meanwhile."""
    try:
        mx.eval(found)
    except RuntimeError as error:
        raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None


__all__ = ["VerifierPart", "load_drafter", "read_verifier_part", "resident_bytes"]
