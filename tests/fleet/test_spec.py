"""specs/fleet.md and the code say the same."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.card import REASONS
from tests.spec_tables import table


def test_the_defaults_are_those_of_the_spec():
    rows = {
        name: float(default)
        for name, default, _ in table("fleet.md", "field", "default", "meaning")
    }
    assert rows == asdict(FleetLimits())


@pytest.mark.spec("F-01")
def test_the_reasons_are_those_of_the_spec():
    assert tuple(reason for reason, _ in table("fleet.md", "reason", "when")) == REASONS
