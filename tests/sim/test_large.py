"""Large fleets.  Larger ones and long times are for the command:

just sim --crowd 200
just sim 0 --level fleet --nodes 50 --hours 1
"""

from __future__ import annotations

import pytest

from tests.sim.crowd import bound_s, crowd


@pytest.mark.parametrize(("num_nodes", "most_s"), [(20, 60), (50, 100)])
async def test_a_crowd_that_starts_at_once_agrees_well_within_2_log2_n_plus_6_intervals(
    num_nodes, most_s, autojump_clock
):
    assert most_s < bound_s(num_nodes)
    await crowd(num_nodes, seed=num_nodes, most_s=most_s)
