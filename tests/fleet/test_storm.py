"""Random faults from one seed, then a calm in which all must agree and stay so."""

from __future__ import annotations

import pytest

from tests.sim.storm import storm


@pytest.mark.parametrize("seed", range(15))
async def test_after_a_storm_all_agree_and_stay_so(seed, autojump_clock):
    await storm(seed)
