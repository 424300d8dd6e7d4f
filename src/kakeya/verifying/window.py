"""Which positions a row attends to, and in which slot of a slab each one lies.

Pure: plain numbers and numpy.  A slab's slot of a position depends on the position alone, so
that rows written in a block and rows written one by one leave the very same slab.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kakeya.verifying.verifier import KvPlan


@dataclass(frozen=True, slots=True)
class Reach:
    """What the row at position p attends to: [0, sink) and (p - window, p], cut to (p - slide, p].

    None means no such limit.  Spec: V-01, V-02.
    """

    sink: int
    window: int | None
    slide: int | None


@dataclass(frozen=True, slots=True)
class SlotMap:
    """Position → slot: positions below `fixed_len` have their own slot, later ones share a ring."""

    fixed_len: int
    ring_len: int  # 0: no ring, nothing is ever overwritten

    @property
    def num_slots(self) -> int:
        return self.fixed_len + self.ring_len

    def slot(self, position: int) -> int:
        if position < self.fixed_len:
            return position
        return self.fixed_len + (position - self.fixed_len) % self.ring_len


def reach_of(plan: KvPlan, sliding_window: int | None) -> Reach:
    """What rows of one kind of layer attend to; `sliding_window` is None for full layers."""
    if plan.mode != "window":
        return Reach(sink=0, window=None, slide=sliding_window)
    return Reach(sink=plan.sink, window=plan.window, slide=sliding_window)


def reading_of(plan: KvPlan) -> tuple[int, int] | None:
    """What a prompt's rows attend to under `plan`: (sink, window), None for all before them.

    Plans that read alike give the same ids the same K and V.
    """
    return (plan.sink, plan.window) if plan.mode == "window" else None


def evicted_by(plan: KvPlan) -> range:
    """The prompt's positions that `restore` evicts: [sink, prompt_len - window)."""
    return range(plan.sink, max(plan.sink, plan.prompt_len - plan.window))


def is_exact(plan: KvPlan, sliding_window: int | None) -> bool:
    """Whether layers of a kind keep all of their own K/V in mode restored."""
    return sliding_window is None and plan.exact_full_layers


def needs_banks(plan: KvPlan, sliding_window: int | None) -> bool:
    """Whether a layer's rows could attend to a position that `restore` evicts."""
    if is_exact(plan, sliding_window) or not evicted_by(plan):
        return False
    return sliding_window is None or sliding_window > plan.window


def reach_after_restore(plan: KvPlan, sliding_window: int | None) -> Reach:
    """What rows attend to once banks stand at the evicted positions: these, and sink and window.

    Spec: V-13.
    """
    if is_exact(plan, sliding_window):
        return reach_of(plan, sliding_window)
    return Reach(sink=evicted_by(plan).stop, window=plan.window, slide=sliding_window)


def kept_positions(length: int, reach: Reach) -> list[int]:
    """Positions below `length` that the row at position `length` can attend to, ascending.

    After StreamingLLM (Xiao et al. 2023), §3.2.  Spec: V-01.
    """
    first = 0 if reach.window is None else max(0, length - reach.window + 1)
    kept = [*range(min(reach.sink, first)), *range(first, length)]
    oldest = 0 if reach.slide is None else length - reach.slide + 1
    return [position for position in kept if position >= oldest]


def slot_map_of(plan: KvPlan, reach: Reach, *, slack: int) -> SlotMap:
    """The slots of one kind of layer under `plan`."""
    if plan.mode != "restored" or reach.slide is not None or plan.exact_full_layers:
        return slot_map(reach, max_len=plan.max_len, slack=slack)
    ring_len = plan.window + slack
    if plan.prompt_len + ring_len >= plan.max_len:
        return SlotMap(fixed_len=plan.max_len, ring_len=0)
    return SlotMap(fixed_len=plan.prompt_len, ring_len=ring_len)


def slot_map(reach: Reach, *, max_len: int, slack: int) -> SlotMap:
    """Where positions below `max_len` lie.  Spec: V-03.

    `slack`: rows that one pass may write ahead; a ring keeps that many positions more than its
    window, so that writing a block (and forgetting it again) loses no position still in reach.
    """
    spans = [span for span in (reach.window, reach.slide) if span is not None]
    if not spans:
        return SlotMap(fixed_len=max_len, ring_len=0)
    has_sink = reach.window is not None and (reach.slide is None or reach.slide > reach.window)
    fixed_len = reach.sink if has_sink else 0
    ring_len = min(spans) + slack
    if fixed_len + ring_len >= max_len:
        return SlotMap(fixed_len=max_len, ring_len=0)
    return SlotMap(fixed_len=fixed_len, ring_len=ring_len)


def hidden_slots(
    slot_positions: NDArray[np.int64],
    rows: NDArray[np.int64],
    reach: Reach,
    *,
    sees_block: bool = False,
) -> NDArray[np.bool_]:
    """True where a row must not look: [len(rows), num_slots].

    sees_block: the rows see one another as well, later ones too.

    slot_positions: the position whose K/V lies in each slot, -1 where there is none.
    rows: the rows' positions.  A forgotten position hides itself: it is behind every row until
    it is written again.
    """
    at, row = slot_positions[None, :], rows[:, None]
    last_seen = np.full_like(row, rows[-1]) if sees_block else row
    hidden = (at < 0) | (at > last_seen)
    if reach.window is not None:
        hidden |= (at >= reach.sink) & (at <= row - reach.window)
    if reach.slide is not None:
        hidden |= at <= row - reach.slide
    return np.asarray(hidden, dtype=np.bool_)
