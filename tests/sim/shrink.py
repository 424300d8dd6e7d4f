"""Cuts a failing plan down to what is needed to fail: delta debugging over its faults and texts.

After Zeller and Hildebrandt (2002), ddmin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.sim.plan import Plan
from tests.sim.run import Outcome

T = TypeVar("T")
Run = Callable[[Plan], Outcome]


def ddmin(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A sublist of `items` that still fails and does not without any one of its parts tried.

    `fails` is true for `items` itself.
    """
    kept, parts = list(items), 2
    if not kept or fails([]):
        return []
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        pieces = [kept[at : at + size] for at in range(0, len(kept), size)]
        for i in range(len(pieces)):
            rest = [each for j, piece in enumerate(pieces) if j != i for each in piece]
            if fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept


class Budget:
    """How many runs a shrink may take, and how long (s)."""

    def __init__(self, num_runs: int, wall_s: float, now: Callable[[], float]) -> None:
        self._left = num_runs
        self._now = now
        self._ends_s = now() + wall_s

    def take(self) -> bool:
        self._left -= 1
        return self._left >= 0 and self._now() < self._ends_s


def shrunk(
    plan: Plan,
    outcome: Outcome,
    *,
    run: Run,
    max_runs: int = 150,
    max_wall_s: float = 600.0,
    now: Callable[[], float] = time.monotonic,
) -> Plan:
    """The smallest plan found that breaks the same rule; `plan` itself if it breaks another."""
    budget = Budget(max_runs, max_wall_s, now)

    def fails(candidate: Plan) -> bool:
        return budget.take() and run(candidate).rule == outcome.rule

    short = until(plan, outcome.virtual_s)
    if short.size < plan.size and fails(short):
        plan = short
    elif not fails(plan):
        return plan
    texts = ddmin(plan.texts, lambda kept: fails(plan.with_texts(tuple(kept))))
    plan = plan.with_texts(tuple(texts))
    faults = ddmin(plan.faults, lambda kept: fails(plan.with_faults(tuple(kept))))
    return plan.with_faults(tuple(faults))


def until(plan: Plan, end_s: float) -> Plan:
    """The plan without what comes after its failure."""
    return replace(
        plan,
        storm_s=min(plan.storm_s, math.ceil(end_s) + 1.0),
        faults=tuple(fault for fault in plan.faults if fault.at_s <= end_s),
        texts=tuple(text for text in plan.texts if text.at_s <= end_s),
    )
