"""The aux of one request: tensors off the wire, looked at on the engine's thread only.

Nothing of them is decoded before; a message's tens of megabytes cost the loop nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kakeya.config.wire import WireLimits
from kakeya.drafting.drafter import DrafterShape
from kakeya.errors import demand
from kakeya.wire.tensor import AnyTensor, Expected, WireArray, decode

DTYPES = ("float32", "float16", "bfloat16")


class AuxRows:
    """num_aux tensors, each [1, num_rows, hidden_size] of one of DTYPES and finite."""

    def __init__(
        self,
        tensors: Sequence[AnyTensor],
        num_rows: int,
        *,
        shape: DrafterShape,
        limits: WireLimits,
    ) -> None:
        demand(
            len(tensors) == shape.num_aux,
            "INVALID_ARGUMENT",
            f"aux has {len(tensors)} tensors, the drafter takes {shape.num_aux}",
        )
        self.num_rows = num_rows
        self._tensors = tensors
        self._expected = Expected((1, num_rows, shape.hidden_size), DTYPES)
        self._limits = limits
        self._arrays: list[WireArray | None] = [None] * len(tensors)

    @property
    def num_arrays(self) -> int:
        return len(self._arrays)

    def check(self, index: int) -> None:
        """Decode one tensor.  Raises Refused(INVALID_ARGUMENT)."""
        self._checked(index)

    def rows(self, first: int, last: int) -> tuple[WireArray, ...]:
        """Rows [first, last) of every tensor: each [last - first, hidden_size].  Raises Refused."""
        arrays = [self._checked(index) for index in range(self.num_arrays)]
        return tuple(WireArray(each.dtype, each.bits[0, first:last]) for each in arrays)

    def _checked(self, index: int) -> WireArray:
        found = self._arrays[index]
        if found is None:
            found = self._arrays[index] = decode(
                self._tensors[index],
                f"aux[{index}]",
                limits=self._limits,
                expected=self._expected,
                must_be_finite=True,
            )
        return found


__all__ = ["DTYPES", "AuxRows"]
