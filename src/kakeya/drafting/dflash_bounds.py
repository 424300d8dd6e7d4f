"""What a DFlash drafter refuses, how large its contexts are, and who sees whom: plain decisions.

Shared by the twins; knows no tensor framework.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.drafter import DrafterShape
from kakeya.errors import demand
from kakeya.wire.tensor import WireArray


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """The slots one kind of layer reads, and which of them each row sees.

    seen: [T, last - first]; None: every row sees every slot.
    """

    first: int
    seen: NDArray[np.bool_] | None


def drafter_shape(config: DflashConfig, limits: DrafterLimits) -> DrafterShape:
    return DrafterShape(
        vocab_size=config.vocab_size,
        num_aux=len(config.aux_layers),
        hidden_size=config.hidden_size,
        max_context_len=config.max_context_len,
        max_num_drafts=config.block_len - 1,
        max_extend_len=limits.max_extend_len,
    )


def slots_for(config: DflashConfig, context_len: int, min_growth_len: int) -> int:
    """Slots a context of `context_len` positions has: room for a block behind it as well.

    Never falls with the length.  Steps grow with the length (a quarter of its power of two), so
    that all the copying of a context that grows costs a few times its size.
    """
    needed = context_len + config.block_len
    step = max(min_growth_len, 1 << max(0, needed.bit_length() - 3))
    return min(-(-needed // step) * step, config.max_context_len)


def context_bytes(
    config: DflashConfig, context_len: int, min_growth_len: int, *, itemsize: int
) -> int:
    if context_len <= 0:
        return 0
    num_slots = slots_for(config, context_len, min_growth_len)
    return 2 * config.num_layers * config.num_kv_heads * num_slots * config.head_dim * itemsize


def sights(config: DflashConfig, context_len: int, block_len: int) -> list[Sight]:
    """What each layer sees of the context and of the block behind it."""
    kinds = list(zip(config.layer_types, config.causal_layers, strict=True))
    found = {
        (kind, is_causal): _sight(config, kind, is_causal, context_len, context_len + block_len)
        for kind, is_causal in dict.fromkeys(kinds)
    }
    return [found[kind] for kind in kinds]


def visible(
    rows: NDArray[np.int64], keys: NDArray[np.int64], *, is_causal: bool, window: int | None
) -> NDArray[np.bool_]:
    """Whether the row at a position sees the key at another: [..., len(rows), len(keys)].

    rows: [..., T], keys: [..., S], positions of one block and of its context and itself.  A
    window reaches as far ahead as back.
    """
    distance = rows[..., :, None] - keys[..., None, :]
    seen = distance >= 0 if is_causal else np.ones_like(distance, dtype=np.bool_)
    return seen if window is None else seen & (np.abs(distance) < window)


def demand_fitting(shape: DrafterShape, context_len: int, aux: Sequence[WireArray]) -> int:
    """The number of rows, which all arrays share.

    Raises Refused: INVALID_ARGUMENT for aux of another shape, OUT_OF_RANGE beyond the drafter's
    positions.
    """
    demand(
        len(aux) == shape.num_aux,
        "INVALID_ARGUMENT",
        f"there are {len(aux)} aux arrays, the drafter takes {shape.num_aux}",
    )
    num_rows = aux[0].bits.shape[0] if aux[0].bits.ndim else 0
    demand(
        1 <= num_rows <= shape.max_extend_len,
        "INVALID_ARGUMENT",
        f"aux has {num_rows} rows, it must have 1 to {shape.max_extend_len}",
    )
    for i, each in enumerate(aux):
        demand(
            each.bits.shape == (num_rows, shape.hidden_size),
            "INVALID_ARGUMENT",
            f"aux[{i}] has shape {list(each.bits.shape)}, "
            f"expected [{num_rows}, {shape.hidden_size}]",
        )
    end = context_len + num_rows
    demand(
        context_len >= 0 and end <= shape.max_context_len,
        "OUT_OF_RANGE",
        f"the context would reach {end} positions, the drafter has {shape.max_context_len}",
    )
    return num_rows


def demand_draftable(shape: DrafterShape, context_len: int, bonus_id: int, num_drafts: int) -> None:
    demand(
        0 <= bonus_id < shape.vocab_size,
        "INVALID_ARGUMENT",
        f"the bonus is {bonus_id}, the vocabulary is 0 to {shape.vocab_size - 1}",
    )
    demand(
        1 <= num_drafts <= shape.max_num_drafts,
        "INVALID_ARGUMENT",
        f"num_drafts is {num_drafts}, it must be 1 to {shape.max_num_drafts}",
    )
    end = context_len + 1 + num_drafts
    demand(
        end <= shape.max_context_len,
        "OUT_OF_RANGE",
        f"the block would reach {end} positions, the drafter has {shape.max_context_len}",
    )


def activation_bytes(config: DflashConfig, block_len: int, *, itemsize: int) -> int:
    """An estimate of a pass: the widest part of a layer, or the logits beside the last one."""
    c = config
    widest = max(2 * c.intermediate_size, 2 * (c.num_heads + 2 * c.num_kv_heads) * c.head_dim)
    num_logits = c.draft_vocab_size or c.vocab_size
    return block_len * (2 * c.hidden_size + max(widest, num_logits)) * itemsize


def _sight(
    config: DflashConfig, layer_type: str, is_causal: bool, context_len: int, end: int
) -> Sight:
    window = config.sliding_window if layer_type == "sliding_attention" else None
    first = 0 if window is None else max(0, context_len + 1 - window)
    if window is None and not is_causal:
        return Sight(first, None)
    rows, keys = np.arange(context_len, end), np.arange(first, end)
    return Sight(first, visible(rows, keys, is_causal=is_causal, window=window))


def row_cuts(lens: Sequence[int]) -> list[slice]:
    """Where the rows of each block are, of blocks that stand one behind the other."""
    ends = itertools.accumulate(lens)
    return [slice(end - length, end) for end, length in zip(ends, lens, strict=True)]


__all__ = [
    "Sight",
    "activation_bytes",
    "context_bytes",
    "demand_draftable",
    "demand_fitting",
    "drafter_shape",
    "row_cuts",
    "sights",
    "slots_for",
    "visible",
]
