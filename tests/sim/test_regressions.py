"""Every plan that ever failed goes on being run.

`just sim` keeps a plan it cut down in `regressions/`; commit it with what mends it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.plan import from_json
from tests.sim.run import run_plan

KEPT = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_plan_that_failed_once_holds(path):
    outcome = run_plan(from_json(path.read_text()))
    assert outcome.held, f"{outcome.rule}: {outcome.why}"


def test_some_plans_are_kept():
    assert KEPT
