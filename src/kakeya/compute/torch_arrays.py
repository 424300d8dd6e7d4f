"""Arrays of the wire as torch tensors and back, without a copy where torch allows.

Runs on the engine's own thread.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

TORCH_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint32": torch.uint32,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def to_torch(dtype: str, bits: NDArray[np.generic]) -> torch.Tensor:
    """The tensor over the memory of `bits` (logical `dtype`); it must not be written to.

    bits: any shape, in the host's byte order; uint16 for bfloat16.  Copied when its address is
    not a multiple of the value's size, as torch wants it: a message puts its data anywhere.
    """
    if not bits.flags.aligned:
        bits = bits.copy()
    with warnings.catch_warnings():
        # Read-only memory is what we want shared: nobody writes to what came off the wire.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(bits)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def from_torch(tensor: torch.Tensor) -> tuple[str, NDArray[np.generic]]:
    """(logical dtype, bits) of `tensor`, over its own memory when it lies on the CPU.

    Raises KeyError for a dtype the contract does not have.
    """
    name = NAMES[tensor.dtype]
    here = tensor.detach().cpu()
    if name == "bfloat16":
        # A view by bits wants the last axis contiguous, and an axis at all.
        here = here.contiguous().view(torch.uint16)
    return name, here.numpy()
