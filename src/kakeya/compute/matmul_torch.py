"""The matrix product of a weight with few rows, in the form that is fast and row-exact here.

Row-exact: the result of a row is the same to the bit whatever rows are computed beside it, and
however many.  That is what lets a verify block commit the very ids of one-token steps.

For float32 on CPUs with MKL the weight is packed once (its columns laid out for the kernel); one
packing serves every number of rows and always runs the same kernel, where plain gemm picks
another one for 1 row, for 2 and from 16 on.  Otherwise the weight stands on the left (`w @ x.T`),
which picks its kernel by the weight's shape and not by the number of rows.  Whether it holds is
measured on the real weights at load (verifying), never assumed; the choice itself is by
rule and not by the clock, since two processes that chose differently could differ in near ties.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

# Rows the packing is laid out for: a chunk of the prompt.  Packed for 8 rows, 64 rows took 81 ms
# instead of 57 over the default model's matrices; 1 to 8 rows take the same time either way.
_PACK_ROWS = 64


class Matrix(Protocol):
    """A weight [out, in] of the model, ready to be applied to rows."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in] → [T, out], contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """float32 on a CPU with MKL.  `shape` carries the weight's shape and none of its memory.

    pads_single_row: this weight is so small that one row runs another kernel than two do, so a
    single row is computed beside a copy of itself.
    """

    packed: Tensor
    shape: Tensor
    bias: Tensor | None
    num_bytes: int
    pads_single_row: bool

    def __call__(self, x: Tensor) -> Tensor:
        if self.pads_single_row and x.shape[0] == 1:
            return self._product(x.repeat(2, 1))[:1]
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkl._mkl_linear(x, self.packed, self.shape, self.bias, x.shape[0])
        return out


@dataclass(frozen=True, slots=True)
class LeftMatrix:
    """Any dtype: the weight on the left, rows as columns."""

    weight: Tensor
    bias: Tensor | None

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        out = (self.weight @ x.T).T.contiguous()
        return out if self.bias is None else out + self.bias


def prepare(weight: Tensor, bias: Tensor | None) -> Matrix:
    """`weight` [out, in] in the form for its dtype on this machine; it may be copied."""
    if weight.dtype == torch.float32 and can_pack():
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
        shape = torch.empty(1, dtype=weight.dtype).expand(weight.shape)
        matrix = PackedMatrix(packed, shape, bias, weight.nbytes, pads_single_row=False)
        probe = torch.linspace(-1.0, 1.0, weight.shape[1]).repeat(2, 1)
        pads_single_row = not torch.equal(matrix(probe)[:1], matrix(probe[:1]))
        return replace(matrix, pads_single_row=pads_single_row)
    return LeftMatrix(weight, bias)


def can_pack() -> bool:
    """Whether this build of torch carries MKL's packed product."""
    return bool(torch._C.has_mkl) and hasattr(torch.ops.mkl, "_mkl_linear")


def keeps_rows_apart() -> bool:
    """Whether a row of a float32 product is the same to the bit whatever rows stand beside it.

    Not on every CPU.  Where it is not, narrower dtypes round most of what differs away, but not
    all of it, and not where somebody looks.
    """
    rng = torch.Generator().manual_seed(1)
    x, weight = torch.randn(8, 64, generator=rng), torch.randn(128, 64, generator=rng)
    matrix = prepare(weight, None)
    alone = torch.cat([matrix(row[None]) for row in x])
    return all(torch.equal(matrix(x[:n]), alone[:n]) for n in range(2, 9))


def use_threads(num_threads: int) -> None:
    """Let tensor jobs of the calling thread run on this many threads."""
    torch.set_num_threads(num_threads)
