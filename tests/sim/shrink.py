"""Cuts a failing plan down to what is needed to fail: delta debugging over its faults and texts.

After Zeller and Hildebrandt (2002), ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass
class Budget:
    """How many runs a shrink may take."""

    left: int


def shrunk(plan: Plan, rule: str, *, run: Run, max_runs: int = 150) -> Plan:
    """The smallest plan found that breaks the same rule; `plan` itself if it breaks another."""
    budget = Budget(max_runs)

    def fails(candidate: Plan) -> bool:
        if budget.left <= 0:
            return False
        budget.left -= 1
        return run(candidate).rule == rule

    if not fails(plan):
        return plan
    texts = ddmin(plan.texts, lambda kept: fails(plan.with_texts(tuple(kept))))
    plan = plan.with_texts(tuple(texts))
    faults = ddmin(plan.faults, lambda kept: fails(plan.with_faults(tuple(kept))))
    return plan.with_faults(tuple(faults))
