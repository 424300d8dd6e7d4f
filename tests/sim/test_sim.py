"""The command behind `just sim`, the shrinker, and the plans that failed once."""

from __future__ import annotations

import pytest

from tests.sim import __main__ as sim
from tests.sim.double import differs
from tests.sim.faults import draw_plan, kinds_of
from tests.sim.plan import Fault, Plan, from_json, to_json
from tests.sim.run import Outcome, run_plan, verdict
from tests.sim.shrink import ddmin
from tests.sim.violation import Violation


def test_seeds_that_hold_end_with_status_0(capsys):
    assert sim.main(["--seeds", "2", "--first", "100", "--level", "fleet"]) == 0
    said = capsys.readouterr().out
    assert "2 runs of 2 seeds held" in said
    assert "fleet: " in said
    assert "node-hours a CPU minute" in said


def test_a_kind_of_fault_that_struck_too_seldom_is_named(capsys):
    asked = ["--seeds", "1", "--first", "100", "--level", "fleet", "--at-least", "1000"]
    assert sim.main(asked) == 1
    assert "struck less than 1000 times: kill (fleet)" in capsys.readouterr().out


def test_a_broken_seed_is_told_in_one_block_and_kept(capsys, tmp_path):
    def broken_when_cut(plan: Plan) -> Outcome:
        cuts = [fault for fault in plan.faults if fault.kind == "cut"]
        rule, why = ("L1", "a card was lost") if len(cuts) > 1 else ("", "")
        return Outcome(rule, why, "", {}, 0.0, ("the last line",))

    argv = ["4", "--level", "fleet", "--keep", str(tmp_path), "--trace", "1"]
    assert sim.main(argv, broken_when_cut) == 1
    said = capsys.readouterr().out
    assert "seed 4 (fleet) broke L1: a card was lost" in said
    assert "commit " in said
    assert "the last line" in said
    kept = from_json((tmp_path / "fleet-4-L1.json").read_text())
    assert [fault.kind for fault in kept.faults] == ["cut", "cut"]
    assert f"just sim --plan {tmp_path}/fleet-4-L1.json" in said
    assert "just sim 4 --level fleet" in said


def test_no_seeds_at_all_is_a_mistake(capsys):
    with pytest.raises(SystemExit):
        sim.main(["--seeds", "0"])
    assert "--seeds is 0" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["fleet", "nodes"])
def test_a_plan_survives_being_written_down(level):
    for seed in range(20):
        plan = draw_plan(seed, level=level)
        assert from_json(to_json(plan)) == plan


def test_plans_of_two_hundred_seeds_hold_every_kind_of_fault():
    for level in ("fleet", "nodes"):
        drawn = {f.kind for seed in range(200) for f in draw_plan(seed, level=level).faults}
        assert drawn == set(kinds_of(level))


def test_shrinking_keeps_just_what_fails():
    tried = []

    def fails(items):
        tried.append(items)
        return {3, 17, 18} <= set(items)

    assert ddmin(range(40), fails) == [3, 17, 18]
    assert len(tried) < 120
    assert ddmin(range(5), lambda items: True) == []


def test_a_violation_names_its_rule_and_a_crash_its_error():
    group = ExceptionGroup("tasks", [Violation("S3", "went back")])
    assert verdict(group) == ("S3", "went back")
    plan = draw_plan(1, level="fleet").with_faults((Fault(1.0, "no such kind"),))
    assert run_plan(plan).rule == "crash"


@pytest.mark.parametrize("level", ["fleet", "nodes"])
def test_two_runs_of_a_seed_are_one_in_every_line(level):
    plan = draw_plan(3, level=level, storm_s=8)
    outcome = run_plan(plan)
    assert outcome.held, outcome.why
    assert differs(plan, outcome) == ""
    other = run_plan(draw_plan(4, level=level, storm_s=8))
    assert "differ" in differs(plan, other)
