"""f_θ beside a drafter: its file, the verifier it leads to, and the layers that are asked for.

Shared by the twins; knows no tensor framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kakeya.drafting.drafter import RestorePlan
from kakeya.errors import Refused, demand

FILE = "ftheta.safetensors"
# The prompt is read in pieces of so many positions that do not see one another: one short job
# each, and a long prompt costs no more a position than a short one.
PIECE_LEN = 64


class Target(msgspec.Struct, frozen=True):
    """The verifier the maps lead to, as the file's header tells."""

    layer_types: tuple[str, ...]
    sliding_window: int | None
    num_kv_heads: int
    head_dim: int


def evicted_positions(plan: RestorePlan) -> range:
    """Positions in [sink, prompt_len - window), ascending."""
    return range(plan.sink, max(plan.sink, len(plan.prompt_ids) - plan.window))


def pieces(evicted: range, prompt_len: int) -> list[range]:
    """The pieces of the prompt that hold evicted positions; they begin at the same ones always."""
    first = evicted.start - evicted.start % PIECE_LEN
    starts = range(first, evicted.stop, PIECE_LEN)
    return [range(start, min(start + PIECE_LEN, prompt_len)) for start in starts]


def wanted_layers(target: Target, plan: RestorePlan) -> list[int]:
    """Layers whose rows could attend to an evicted position, and that are not left out."""
    wanted = []
    for i, layer_type in enumerate(target.layer_types):
        if layer_type == "full_attention":
            needs = not plan.omits_full_layers
        else:
            needs = target.sliding_window is None or target.sliding_window > plan.window
        if needs:
            wanted.append(i)
    return wanted


def num_rows(shape: Sequence[int]) -> int:
    """Rows of a map of this shape; 0 where it is no matrix."""
    return shape[0] if len(shape) == 2 else 0


def read_target(header: Mapping[str, str] | None, found_rows: Mapping[str, int]) -> Target:
    """The verifier that a file's header names, where its maps have the rows for it.

    found_rows: of each map.  Raises Refused(DATA_LOSS, INVALID_ARGUMENT).
    """
    try:
        target = msgspec.json.decode((header or {}).get("target", ""), type=Target)
    except msgspec.DecodeError as error:
        raise Refused("DATA_LOSS", f"{FILE} cannot be read: {error}") from None
    wanted = len(target.layer_types) * 2 * target.num_kv_heads * target.head_dim
    for name, found in found_rows.items():
        demand(
            found == wanted,
            "INVALID_ARGUMENT",
            f"{name} of {FILE} has {found} rows, its header says {wanted}",
        )
    return target


__all__ = [
    "FILE",
    "PIECE_LEN",
    "Target",
    "evicted_positions",
    "num_rows",
    "pieces",
    "read_target",
    "wanted_layers",
]
