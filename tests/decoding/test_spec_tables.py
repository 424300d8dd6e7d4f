"""The limits in specs/ are the limits in the code."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kakeya.config.decoding import DecodingLimits
from kakeya.config.drafting import DraftingLimits
from tests.spec_tables import table


@pytest.mark.parametrize(
    ("section", "limits"), [("decoding", DecodingLimits), ("drafting", DraftingLimits)]
)
def test_the_limits_are_those_of_the_spec(section, limits):
    in_code = [(f"{section}.{each.name}", str(each.default)) for each in fields(limits)]
    assert table(f"{section}.md", "key", "default") == in_code
