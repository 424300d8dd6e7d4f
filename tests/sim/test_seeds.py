"""Storms of many seeds, each followed by a calm in which all must agree and stay so.

`just sim --seeds N` runs as many as one likes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.faults import FLEET_KINDS, NODE_KINDS, draw_plan
from tests.sim.plan import Level
from tests.sim.run import run_plan

FLEET_SEEDS, NODE_SEEDS = range(40), range(8)
# How often each kind of fault struck, and the seeds that were run.
struck: Counter[str] = Counter()
run: set[tuple[Level, int]] = set()


def survives(level: Level, seed: int) -> None:
    outcome = run_plan(draw_plan(seed, level=level))
    assert outcome.held, f"{outcome.rule}: {outcome.why}; repeat: just sim {seed} --level {level}"
    struck.update(outcome.coverage)
    run.add((level, seed))


@pytest.mark.parametrize("seed", FLEET_SEEDS)
def test_a_fleet_survives_a_storm(seed):
    survives("fleet", seed)


@pytest.mark.parametrize("seed", NODE_SEEDS)
def test_whole_nodes_survive_a_storm(seed):
    survives("nodes", seed)


def test_every_kind_of_fault_struck():
    """A storm says nothing of what it did not do."""
    if len(run) < len(FLEET_SEEDS) + len(NODE_SEEDS):
        pytest.skip("not all seeds were run")
    assert not ({*FLEET_KINDS, *NODE_KINDS} - set(struck))
