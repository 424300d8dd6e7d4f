"""After a storm of hostile connections nothing is left, and nobody else noticed."""

from __future__ import annotations

import pytest

from tests.rpc.hostile import storm


@pytest.mark.spec("R-02", "R-08", "R-12")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_storm_of_hostile_connections_leaves_nothing(seed, autojump_clock):
    print(f"seed {seed}")  # noqa: T201
    left = await storm(seed, 100)
    assert left == dict.fromkeys(left, 0)
