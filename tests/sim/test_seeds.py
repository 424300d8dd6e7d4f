"""Storms of many seeds, each followed by a calm in which all must agree and stay so.

`just sim --seeds N` runs as many as one likes.
"""

from __future__ import annotations

import pytest

from tests.sim.faults import draw_plan
from tests.sim.run import run_plan


@pytest.mark.parametrize("seed", range(40))
def test_a_fleet_survives_a_storm(seed):
    outcome = run_plan(draw_plan(seed, level="fleet"))
    assert outcome.held, f"{outcome.rule}: {outcome.why}; repeat: just sim {seed} --level fleet"


@pytest.mark.parametrize("seed", range(8))
def test_whole_nodes_survive_a_storm(seed):
    outcome = run_plan(draw_plan(seed, level="nodes"))
    assert outcome.held, f"{outcome.rule}: {outcome.why}; repeat: just sim {seed} --level nodes"
