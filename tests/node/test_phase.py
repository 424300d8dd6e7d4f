from itertools import product

import pytest

from kakeya.node.phase import TABLE, Event, Phase, after
from tests.spec_tables import table


@pytest.mark.spec("N-01")
def test_the_phase_table_is_the_one_in_the_spec():
    written = {(a, e): b for a, e, b in table("node.md", "phase", "event", "next")}
    assert {(a.value, e.value): b.value for (a, e), b in TABLE.items()} == written


@pytest.mark.spec("N-01")
@pytest.mark.parametrize(("phase", "event"), [p for p in product(Phase, Event) if p not in TABLE])
def test_a_pair_outside_the_table_is_our_mistake(phase, event):
    with pytest.raises(AssertionError):
        after(phase, event)


def test_every_phase_but_stopped_can_stop():
    for phase in set(Phase) - {Phase.STOPPED}:
        assert after(phase, Event.FAILED) is Phase.STOPPED
