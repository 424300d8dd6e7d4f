"""Arrays of the wire as MLX arrays and back.

MLX arrays belong to the thread that made them: both functions run on the engine's own thread,
and what from_mlx gives is plain host memory that may leave it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

MLX_DTYPES = {
    "float32": mx.float32,
    "float16": mx.float16,
    "bfloat16": mx.bfloat16,
    "int32": mx.int32,
    "int64": mx.int64,
    "uint32": mx.uint32,
    "bool": mx.bool_,
}
NAMES = {str(dtype): name for name, dtype in MLX_DTYPES.items()}


def to_mlx(dtype: str, bits: NDArray[np.generic]) -> mx.array:
    """The array of logical `dtype`; MLX copies host memory once.

    bits: any shape, in the host's byte order; uint16 for bfloat16.
    """
    array = mx.array(bits)
    return array.view(mx.bfloat16) if dtype == "bfloat16" else array


def from_mlx(array: mx.array) -> tuple[str, NDArray[np.generic]]:
    """(logical dtype, bits): evaluates `array` and copies it to host memory.

    Raises KeyError for a dtype the contract does not have.
    """
    name = NAMES[str(array.dtype)]
    if name == "bfloat16":
        array = array.view(mx.uint16)
    return name, np.array(array)


def arrays_in(part: Any) -> list[mx.array]:
    """Every array in a tree of tuples, lists and dataclasses."""
    if isinstance(part, mx.array):
        return [part]
    if isinstance(part, (tuple, list)):
        return [array for each in part for array in arrays_in(each)]
    names = getattr(type(part), "__dataclass_fields__", ())
    return [array for name in names for array in arrays_in(getattr(part, name))]
