"""Whether restored K/V banks fit the verifier they are meant for.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kakeya.errors import demand
from kakeya.verifying.verifier import Bank, Geometry, KvPlan
from kakeya.verifying.window import evicted_by, needs_banks

FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def demand_fit(banks: Sequence[Bank], plan: KvPlan, geometry: Geometry, *, length: int) -> None:
    """Raise Refused(INVALID_ARGUMENT) naming the first layer and value that do not fit.

    A bank has a row for each evicted position, or one for each of the prompt's.  All layers of a
    type have one, or none of them; none only where no evicted position could be attended to.
    Spec: V-13.
    """
    demand(plan.mode == "restored", "INVALID_ARGUMENT", f"this K/V is {plan.mode}, not restored")
    demand(
        evicted_by(plan).stop <= length <= plan.prompt_len,
        "FAILED_PRECONDITION",
        f"{length} positions are read, it must be {evicted_by(plan).stop} to {plan.prompt_len}",
    )
    for bank in banks:
        demand(
            0 <= bank.layer < geometry.num_layers,
            "INVALID_ARGUMENT",
            f"a bank is for layer {bank.layer}, the model has 0 to {geometry.num_layers - 1}",
        )
        demand(
            geometry.kv_shape(bank.layer) is not None,
            "INVALID_ARGUMENT",
            f"a bank is for layer {bank.layer}, which reads another layer's K and V",
        )
        for name, rows in (("k", bank.k), ("v", bank.v)):
            _demand_rows(bank, name, rows, plan, geometry)
    _demand_whole_types([bank.layer for bank in banks], plan, geometry)


def _demand_rows(
    bank: Bank, name: str, rows: NDArray[np.generic], plan: KvPlan, geometry: Geometry
) -> None:
    what = f"{name} of layer {bank.layer}"
    demand(
        FLOATS.get(bank.dtype) == rows.dtype,
        "INVALID_ARGUMENT",
        f"{what} is {bank.dtype} in {rows.dtype}, it must be one of {', '.join(FLOATS)}",
    )
    counts = (len(evicted_by(plan)), plan.prompt_len)
    wanted = geometry.kv_shape(bank.layer)
    assert wanted is not None
    demand(
        rows.ndim == 3 and rows.shape[0] in counts and rows.shape[1:] == wanted,
        "INVALID_ARGUMENT",
        f"{what} has shape {list(rows.shape)}, it must be [{counts[0]} or {counts[1]}, "
        f"{wanted[0]}, {wanted[1]}]",
    )
    finite = (rows & 0x7F80) != 0x7F80 if rows.dtype == np.uint16 else np.isfinite(rows)  # type: ignore[operator,call-overload]
    demand(bool(finite.all()), "INVALID_ARGUMENT", f"{what} has values that are not finite")


def _demand_whole_types(layers: Sequence[int], plan: KvPlan, geometry: Geometry) -> None:
    demand(len(set(layers)) == len(layers), "INVALID_ARGUMENT", "two banks are for one layer")
    for layer_type in dict.fromkeys(geometry.layer_types):
        of_type = [
            i
            for i, each in enumerate(geometry.layer_types)
            if each == layer_type and geometry.kv_shape(i) is not None
        ]
        given = sum(layer in of_type for layer in layers)
        slide = geometry.sliding_window if layer_type == "sliding_attention" else None
        wanted = (len(of_type),) if needs_banks(plan, slide) else (0, len(of_type))
        demand(
            given in wanted,
            "INVALID_ARGUMENT",
            f"{given} of {len(of_type)} {layer_type} layers have banks, it must be all"
            + (" or none" if 0 in wanted else ""),
        )
