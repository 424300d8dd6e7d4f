"""Storms of many seeds, each followed by a calm in which all must agree and stay so.

300 of the fleet and 50 of whole nodes: the first in this process, so that one can be run alone.

`just sim --seeds N` runs as many as one likes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.faults import draw_plan
from tests.sim.plan import Level
from tests.sim.run import run_plan

FLEET_SEEDS, NODE_SEEDS = range(40), range(8)
NUM_FLEETS, NUM_NODES = 300, 50
ROOT = Path(__file__).resolve().parents[2]


def survives(level: Level, seed: int) -> None:
    outcome = run_plan(draw_plan(seed, level=level))
    assert outcome.held, f"{outcome.rule}: {outcome.why}; repeat: just sim {seed} --level {level}"


@pytest.mark.parametrize("seed", FLEET_SEEDS)
def test_a_fleet_survives_a_storm(seed):
    survives("fleet", seed)


@pytest.mark.parametrize("seed", NODE_SEEDS)
def test_whole_nodes_survive_a_storm(seed):
    survives("nodes", seed)


@pytest.mark.timeout(900)
def test_hundreds_more_survive_in_two_processes_and_some_of_them_twice():
    """Each kind strikes; seeds 99, 199, 299 run once more in a process of another hash seed."""
    runs = [
        hundreds("fleet", len(FLEET_SEEDS), NUM_FLEETS),
        hundreds("nodes", len(NODE_SEEDS), NUM_NODES),
    ]
    try:
        for process in runs:
            said, errors = process.communicate()
            assert process.returncode == 0, said[-4000:] + errors[-2000:]
    finally:
        for process in runs:
            process.kill()
            process.wait()


def hundreds(level: Level, first: int, end: int) -> subprocess.Popen[str]:
    asked = ("--level", level, "--first", str(first), "--seeds", str(end - first))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sim", *asked, "--at-least", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
