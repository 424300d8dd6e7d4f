"""From a checkpoint folder to a DFlash drafter.  Runs on the engine's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kakeya.compute.matmul_torch import prepare, use_threads
from kakeya.compute.threads import usable_cores
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_checkpoint import (
    ID_MAP,
    DflashCheckpoint,
    drafter_bytes,
    find_verifier_ends,
    read_dflash_checkpoint,
)
from kakeya.drafting.dflash_config import VerifierShape, demand_fits
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter, Restorer
from kakeya.drafting.dflash_weights_torch import DTYPES, DflashWeights, VerifierEnds, assemble
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
) -> DflashTorchDrafter:
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
    is_small = num_bytes <= limits.one_thread_bytes
    use_threads(1 if is_small else limits.num_threads or usable_cores())
    ends = None if verifier is None else verifier.ends
    weights = _read(checkpoint, ends, dtype, progress)
    return DflashTorchDrafter(config, weights, model_id=model_id, limits=limits, restorer=restorer)


def read_verifier_part(folder: Path, *, dtype: str, limits: DrafterLimits) -> VerifierPart:
    """Shape, embedding and head out of a verifier's checkpoint folder; nothing else is read.

    Raises Refused as the reading of a drafter's folder does.
    """
    demand_dtype(dtype)
    found = find_verifier_ends(folder, limits)
    with ExitStack() as stack:
        reader = _Reader(found.files, list(found.names), DTYPES[dtype], stack)
        read = [reader.tensor(name) for name in found.names]
    return VerifierPart(found.shape, VerifierEnds(read[0], read[-1]), found.family)


def demand_dtype(dtype: str) -> None:
    demand(
        dtype in DTYPES,
        "INVALID_ARGUMENT",
        f"dtype is {dtype!r}, supported are {', '.join(DTYPES)}",
    )


def resident_bytes(checkpoint: DflashCheckpoint, dtype: str) -> int:
    """Bytes the weights take in memory, the verifier's embedding and head with them."""
    return drafter_bytes(checkpoint, DTYPES[dtype].itemsize)


class _Reader:
    """Tensors by name out of memory-mapped files that are open as long as the stack is."""

    def __init__(
        self,
        files: Mapping[str, Path],
        names: list[str],
        dtype: torch.dtype,
        stack: ExitStack,
    ) -> None:
        self._files = files
        self._dtype = dtype
        try:
            self._opened: dict[Path, Any] = {
                path: stack.enter_context(safe_open(path, framework="pt"))
                for path in sorted({files[name] for name in names})
            }
        except SafetensorError as error:
            raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None

    def tensor(self, name: str) -> Tensor:
        """A copy in the engine's dtype; the file's pages may be dropped again."""
        try:
            found: Tensor = self._opened[self._files[name]].get_tensor(name)
        except SafetensorError as error:
            raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None
        return found.to(torch.int64 if name == ID_MAP else self._dtype, copy=True)


def _read(
    checkpoint: DflashCheckpoint,
    ends: VerifierEnds | None,
    dtype: str,
    progress: Callable[[float], None],
) -> DflashWeights:
    names = list(checkpoint.shapes)
    num_read = 0
    if ends is not None:
        ends = VerifierEnds(ends.embedding.to(DTYPES[dtype]), ends.head.to(DTYPES[dtype]))
    with ExitStack() as stack:
        reader = _Reader(checkpoint.files, names, DTYPES[dtype], stack)

        def get(name: str) -> Tensor:
            nonlocal num_read
            num_read += 1
            # k, v and k_norm are read twice, so the share may run ahead.
            progress(min(1.0, num_read / (len(names) + 1)))
            return reader.tensor(name)

        weights = assemble(checkpoint.config, get, names, ends=ends, form=prepare)
    progress(1.0)
    return weights


__all__ = ["VerifierPart", "load_drafter", "read_verifier_part", "resident_bytes"]
