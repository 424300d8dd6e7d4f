"""Tensors of the contract to numpy arrays and back, every lie refused before any allocation.

bfloat16 has no numpy scalar: here it is a *logical* dtype over uint16 bits, and only the bridges
of compute/ make numbers of it.  The wire is little-endian whatever the host is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kakeya.config.wire import WireLimits
from kakeya.errors import Refused, demand
from kakeya.wire.pb.kakeya.v1.distributed_pb2 import Tensor

# Logical dtype → the numpy dtype that carries its bits.
CARRIERS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint32": np.dtype(np.uint32),
    "bool": np.dtype(np.bool_),
}
MAX_POSITION = (1 << 31) - 1
# Values are looked at in runs of this many: what comes of a run stays in the cache.
_RUN_LEN = 1 << 16
ByteOrder = Literal["little", "big"]
HOST_ORDER: ByteOrder = sys.byteorder


@dataclass(frozen=True, slots=True, eq=False)
class WireArray:
    """bits: any shape, dtype CARRIERS[dtype], in the host's byte order; read-only when decoded."""

    dtype: str
    bits: NDArray[Any]


class AnyTensor(Protocol):
    """A tensor of the contract: the generated message, or a TensorView."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def data(self) -> bytes | memoryview: ...


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """A tensor whose data stay where they are, in a message's memory or an array's.

    Unlike the generated message it costs no copy to make, to send and to look at (wire/bulk).
    """

    dtype: str
    shape: Sequence[int]
    data: memoryview


@dataclass(frozen=True, slots=True)
class Expected:
    """What a tensor must be.  None as a dim: any size; dtypes empty: any of the contract's."""

    shape: tuple[int | None, ...]
    dtypes: tuple[str, ...] = ()


def encode(array: WireArray, *, host_order: ByteOrder = HOST_ORDER) -> Tensor:
    """The message of `array`.  Its bytes are copied once, by tobytes.

    protobuf takes the resulting bytes over without another copy where its backend allows.
    """
    assert array.bits.dtype == CARRIERS[array.dtype]
    bits = array.bits if host_order == "little" else array.bits.byteswap()
    return Tensor(dtype=array.dtype, shape=array.bits.shape, data=bits.tobytes())


def viewed(array: WireArray, *, host_order: ByteOrder = HOST_ORDER) -> TensorView:
    """The tensor of `array` over the array's own memory, which must not change any more.

    Only an array that is not contiguous, or on a big-endian host, is copied.
    """
    assert array.bits.dtype == CARRIERS[array.dtype]
    bits = array.bits if host_order == "little" else array.bits.byteswap()
    data = np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data
    return TensorView(array.dtype, array.bits.shape, data.toreadonly())


def decode(
    tensor: AnyTensor,
    what: str,
    *,
    limits: WireLimits,
    expected: Expected | None = None,
    must_be_finite: bool = False,
    host_order: ByteOrder = HOST_ORDER,
) -> WireArray:
    """The array `tensor` describes: a read-only view of the message's own bytes, at any address.

    `what` names the tensor in refusals ("aux[2]").  A dim of zero is a tensor without values and
    is allowed where `expected` allows it.  Raises Refused(INVALID_ARGUMENT).
    """
    dtype = check_dtype(tensor.dtype, what, expected)
    shape = check_shape(tensor.shape, what, max_rank=limits.max_tensor_rank)
    _check_expected(shape, what, expected)
    carrier = CARRIERS[dtype]
    data = tensor.data  # the generated message makes a new bytes object at every access
    _check_size(shape, carrier.itemsize, len(data), what, limits.max_tensor_bytes)
    if dtype == "bool":
        _check_bools(data, what)
    bits = np.frombuffer(data, dtype=carrier.newbyteorder("<")).reshape(shape)
    # On a little-endian host the two dtypes are the same and nothing is copied.
    if host_order == "big":
        bits = bits.byteswap().view(carrier)
        bits.flags.writeable = False
    array = WireArray(dtype, bits)
    if must_be_finite:
        check_finite(array, what)
    return array


def check_dtype(dtype: str, what: str, expected: Expected | None = None) -> str:
    demand(
        dtype in CARRIERS,
        "INVALID_ARGUMENT",
        f"{what}: dtype is {_short(dtype)}, it must be one of {', '.join(CARRIERS)}",
    )
    allowed = expected.dtypes if expected else ()
    demand(
        not allowed or dtype in allowed,
        "INVALID_ARGUMENT",
        f"{what}: dtype is {dtype}, expected {' or '.join(allowed)}",
    )
    return dtype


def check_shape(shape: Sequence[int], what: str, *, max_rank: int) -> tuple[int, ...]:
    """`shape` as a tuple.  Its length is looked at before its members."""
    demand(
        len(shape) <= max_rank,
        "INVALID_ARGUMENT",
        f"{what}: {len(shape)} dims, the limit is {max_rank}",
    )
    for axis, dim in enumerate(shape):
        demand(dim >= 0, "INVALID_ARGUMENT", f"{what}: dim {axis} is {dim}, it must be ≥ 0")
    return tuple(shape)


def check_positions(
    positions: Sequence[int], what: str, *, count: int, below: int = MAX_POSITION + 1
) -> None:
    """Refuse positions that are not `count` ascending numbers in [0, below)."""
    demand(
        len(positions) == count,
        "INVALID_ARGUMENT",
        f"{what}: {len(positions)} positions for {count} rows",
    )
    if count == 0:
        return
    array = np.fromiter(positions, dtype=np.int64, count=count)
    for bad, bound in ((array < 0, "≥ 0"), (array >= below, f"< {below}")):
        if bad.any():
            at = int(bad.argmax())
            raise _bad_position(what, at, int(array[at]), bound)
    falls = np.flatnonzero(np.diff(array) <= 0)
    if falls.size:
        at = int(falls[0]) + 1
        raise _bad_position(what, at, int(array[at]), f"> {int(array[at - 1])}, the one before it")


def check_finite(array: WireArray, what: str) -> None:
    """Refuse NaN and infinity; integers and bools are always finite."""
    num_bad = count_not_finite(array)
    demand(
        num_bad == 0,
        "INVALID_ARGUMENT",
        f"{what}: {num_bad} of {array.bits.size} values are not finite",
    )


def count_not_finite(array: WireArray) -> int:
    """How many values are NaN or infinite.

    Work for an engine's thread when the array is large: 0.5 to 2 ms a million values.
    """
    if array.dtype not in ("bfloat16", "float32", "float16"):
        return 0
    flat = array.bits.reshape(-1)
    runs = (flat[at : at + _RUN_LEN] for at in range(0, flat.size, _RUN_LEN))
    if array.dtype == "bfloat16":
        # All eight exponent bits set: infinity or NaN.
        return sum(int(np.count_nonzero((run & 0x7F80) == 0x7F80)) for run in runs)
    return sum(int(run.size - np.count_nonzero(np.isfinite(run))) for run in runs)


def _check_expected(shape: tuple[int, ...], what: str, expected: Expected | None) -> None:
    if expected is None:
        return
    matches = len(shape) == len(expected.shape) and all(
        want is None or dim == want for dim, want in zip(shape, expected.shape, strict=True)
    )
    wanted = ", ".join("any" if want is None else str(want) for want in expected.shape)
    demand(
        matches,
        "INVALID_ARGUMENT",
        f"{what}: shape is {list(shape)}, expected [{wanted}]",
    )


def _check_size(
    shape: tuple[int, ...], item_bytes: int, data_bytes: int, what: str, max_bytes: int
) -> None:
    """Python's integers do not overflow, so a product of huge dims is simply too large.

    Zero dims are left out of the bound: numpy multiplies the others even in an empty tensor.
    """
    num_bytes = bound_bytes = item_bytes
    for dim in shape:
        num_bytes *= dim
        bound_bytes *= max(dim, 1)
    demand(
        bound_bytes <= max_bytes,
        "INVALID_ARGUMENT",
        f"{what}: shape {list(shape)} needs {bound_bytes} bytes, the limit is {max_bytes}",
    )
    demand(
        data_bytes == num_bytes,
        "INVALID_ARGUMENT",
        f"{what}: data has {data_bytes} bytes, shape {list(shape)} needs {num_bytes}",
    )


def _check_bools(data: bytes | memoryview, what: str) -> None:
    """numpy would carry another byte along as a True that equals no other True."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if raw.size and (largest := int(raw.max())) > 1:
        raise Refused("INVALID_ARGUMENT", f"{what}: a bool is {largest}, it must be 0 or 1")


def _bad_position(what: str, at: int, value: int, bound: str) -> Refused:
    return Refused("INVALID_ARGUMENT", f"{what}: position {at} is {value}, it must be {bound}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
