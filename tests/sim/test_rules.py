"""Which rules a simulation holds and where, and which kinds of faults make its storms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sim.faults import FLEET_KINDS, METHODS, NODE_KINDS, poison_cards
from tests.sim.rogue import MANNERS

HERE = Path(__file__).parent

# Rule → what must hold, and the files that look.
SAFETY = {
    "S1": ("no card is shown whose lifetime is over by the viewer's clock", "oracle test_expiry"),
    "S2": ("a node shows its own card, issued by itself, stamps rising", "oracle"),
    "S3": ("the stamp held of a node never goes back", "oracle"),
    "S4": ("every card held was issued by its owner", "oracle"),
    "S5": ("what is held and remembered stays within its caps", "oracle"),
    "S6": ("merging is commutative, associative, idempotent", "../fleet/test_registry"),
    "S7": ("no foreign or non-finite stamp is held", "oracle"),
    "S8": ("sessions, slots and bytes are back at zero", "last quiet ../drafting/test_machine"),
    "S9": ("a node that stops leaves no task and no connection", "quiet last nodes_play"),
    "S10": ("committed ids are those of the model alone", "generations last"),
    "S11": ("no call outlives its deadline by more than one job", "quiet"),
    "S12": ("sessions draft from the true context", "contexts"),
    "S13": ("no task fails on a mistake of our own", "fleet_play nodes_play"),
}
LIVENESS = {
    "L1": ("all agree within 2·log2(N) + 6 intervals", "calm test_large"),
    "L2": ("a dead node is gone by ttl + 2·skew + 1 interval", "calm test_expiry"),
    "L3": ("a partition heals within 3 intervals + log2(N)", "calm test_gossip_cases"),
    "L4": ("a node that left is gone within its ttl + skew + 1 interval", "calm"),
    "L5": ("no live card is lost at 10 % loss", "calm ../fleet/test_gossip"),
    "L6": ("drafts come from a proposer again soon after it returned", "last test_session_cases"),
}
# What can go wrong → the kinds that do it.
FAULTS = {
    "partition, symmetric": "cut isolate",
    "partition, one way": "cut_one_way",
    "loss": "lose",
    "clog, slow loop": "slow",
    "hang after accept": "freeze",
    "connection cut in mid-frame": "break_off",
    "crash": "kill vanish restart_all",
    "crash during a call": "kill_within",
    "crash during leave": "kill_leaving",
    "leave": "leave",
    "restart, same or new address": "start",
    "restart, lost store": "start_wiped",
    "full disk": "fill_disk",
    "clock offset, step": "step leap",
    "clock drift": "drift",
    "poison cards": "poison forge flood",
    "duplicate id": "twin",
    "all seeds dead": "kill_all_seeds",
    "names not resolved": "lose_names",
    "another fleet at an address": "alien",
    "slow or failing device": "strain_verifying strain_drafting strain_sessions",
    "garbage, late and stale drafts": "rogue",
    "(the end of some)": "heal",
}


def test_every_rule_is_looked_at_where_the_table_says():
    for rule, (what, where) in {**SAFETY, **LIVENESS}.items():
        for name in where.split():
            text = (HERE / f"{name}.py").read_text()
            assert rule in text or name.startswith(("..", "test_")), (rule, name)
        assert what


def test_every_rule_that_the_simulation_demands_is_in_the_table():
    text = "\n".join(path.read_text() for path in HERE.glob("*.py") if path.stem != "test_rules")
    assert set(re.findall(r'"([SL]\d+)"', text)) <= {*SAFETY, *LIVENESS}


def test_every_kind_of_fault_is_one_that_can_happen_and_the_other_way_round():
    told = [kind for kinds in FAULTS.values() for kind in kinds.split()]
    assert sorted(told) == sorted({*FLEET_KINDS, *NODE_KINDS})


@pytest.mark.parametrize(
    "method", ["ExchangeCapabilities", "Restore", "SeedContext", "DraftBlock", "ExtendContext"]
)
def test_nodes_die_within_each_call_of_the_contract(method):
    assert method in METHODS


def test_cards_and_drafts_go_wrong_in_every_way():
    assert len(poison_cards(0.0, "attic")) == 15
    assert len(MANNERS) == 9
