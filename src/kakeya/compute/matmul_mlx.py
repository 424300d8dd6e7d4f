"""The matrix product of a weight with few rows in MLX, dense or in MLX's quantised layout.

Whether a row's result depends on the rows beside it is a matter of MLX's kernels for this machine
(on its CPU backend it was not seen to); it is measured at load, never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from kakeya.compute.quantized import Quantized


class Matrix(Protocol):
    """A weight [out, in] of the model, ready to be applied to rows."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: mx.array) -> mx.array:
        """x: [T, in] → [T, out]."""
        ...

    def rows(self, ids: mx.array) -> mx.array:
        """The rows `ids` [n] of the weight: [n, in]; for embeddings."""
        ...


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Any dtype, as it is."""

    weight: mx.array
    bias: mx.array | None

    @property
    def num_bytes(self) -> int:
        return int(self.weight.nbytes)

    def __call__(self, x: mx.array) -> mx.array:
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias

    def rows(self, ids: mx.array) -> mx.array:
        return self.weight[ids]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """MLX's layout: packed [out, in * bits / 32], scales and biases [out, in / group_size]."""

    packed: mx.array
    scales: mx.array
    biases: mx.array
    how: Quantized
    bias: mx.array | None

    @property
    def num_bytes(self) -> int:
        return int(self.packed.nbytes + self.scales.nbytes + self.biases.nbytes)

    def __call__(self, x: mx.array) -> mx.array:
        out = mx.quantized_matmul(
            x,
            self.packed,
            self.scales,
            self.biases,
            transpose=True,
            group_size=self.how.group_size,
            bits=self.how.bits,
        )
        return out if self.bias is None else out + self.bias

    def rows(self, ids: mx.array) -> mx.array:
        return mx.dequantize(
            self.packed[ids],
            self.scales[ids],
            self.biases[ids],
            group_size=self.how.group_size,
            bits=self.how.bits,
        )


@dataclass(frozen=True, slots=True)
class JoinedMatrix:
    """Matrices of different packing, their outputs one behind the other."""

    parts: tuple[Matrix, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.concatenate([part(x) for part in self.parts], axis=1)

    def rows(self, ids: mx.array) -> mx.array:
        raise AssertionError("embeddings are never joined")


def join(parts: Sequence[DenseMatrix | PackedMatrix]) -> Matrix:
    """One matrix of them all, outputs one behind the other."""
    if len(parts) == 1:
        return parts[0]
    dense = [part for part in parts if isinstance(part, DenseMatrix)]
    if len(dense) == len(parts):
        return DenseMatrix(
            mx.concatenate([part.weight for part in dense]), _joined([part.bias for part in dense])
        )
    packed = [part for part in parts if isinstance(part, PackedMatrix)]
    if len(packed) != len(parts) or len({part.how for part in packed}) > 1:
        return JoinedMatrix(tuple(parts))
    return PackedMatrix(
        mx.concatenate([part.packed for part in packed]),
        mx.concatenate([part.scales for part in packed]),
        mx.concatenate([part.biases for part in packed]),
        packed[0].how,
        _joined([part.bias for part in packed]),
    )


def keeps_rows_apart() -> bool:
    """Whether a row of a float32 product is the same to the bit whatever rows stand beside it.

    Dense and packed, on the device MLX computes on.  Where it is not, narrower dtypes round most
    of what differs away, but not all of it, and not where somebody looks.
    """
    x, weight = (mx.random.normal(shape, key=mx.random.key(1)) for shape in ((17, 64), (128, 64)))
    how = Quantized(bits=4, group_size=64)
    parts = mx.quantize(weight, group_size=how.group_size, bits=how.bits)
    return all(
        _is_apart(matrix, x)
        for matrix in (DenseMatrix(weight, None), PackedMatrix(*parts, how, None))
    )


def _is_apart(matrix: Matrix, x: mx.array) -> bool:
    alone = mx.concatenate([matrix(row[None]) for row in x])
    return all(bool(mx.array_equal(matrix(x[:n]), alone[:n])) for n in range(2, len(x) + 1))


def _joined(biases: Sequence[mx.array | None]) -> mx.array | None:
    """All of them or none: fused layers have a bias together."""
    there = [bias for bias in biases if bias is not None]
    return mx.concatenate(there) if there else None
