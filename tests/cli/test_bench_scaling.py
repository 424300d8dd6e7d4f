"""Many generations at once: what the table holds, and how its figures are reckoned."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from kakeya.cli import bench_cores
from kakeya.cli.bench_cores import Cores, held_here, hold, two_cores
from kakeya.cli.bench_flags import concurrencies_of
from kakeya.cli.bench_report import SCALING_COLUMNS, scaling_table
from kakeya.cli.bench_scaling import Run, Turn, scaling_row
from kakeya.errors import Refused
from tests.cli.nodes import run_here

needs_two_cores = pytest.mark.skipif(two_cores() is None, reason="nothing to hold processes on")


def run_of(elapsed_s: float, *, ids=((1, 2), (3, 4)), num_drafts: int = 0) -> Run:
    return Run(ids, elapsed_s, num_rounds=2, num_drafts=num_drafts, verify_cpu_s=0.4,
               draft_cpu_s=0.1)  # fmt: skip


@pytest.mark.spec("N-18")
def test_a_row_has_the_ratios_of_its_turns_and_the_bound_of_its_times():
    turn = Turn(run_of(2.0), run_of(1.0, num_drafts=10), run_of(1.5))
    row = scaling_row(2, [turn, turn])
    assert (row["plain_tokens_per_second"], row["apart_tokens_per_second"]) == (2.0, 4.0)
    assert row["ratio_to_plain"] == 2.0
    assert row["ratio_to_sharing"] == 1.5
    assert (row["t_v_s"], row["t_d_s"], row["drafts_per_round"]) == (0.2, 0.01, 5.0)
    assert row["bound"] == 1.25  # 1 + 5 drafts of 0.01 s beside 0.2 s
    assert (row["num_equal"], row["num_compared"], row["ids_equal"]) == (8, 8, True)


def test_ids_that_differ_are_counted():
    turn = Turn(run_of(1.0), run_of(1.0, ids=((1, 2), (3, 5))), run_of(1.0))
    row = scaling_row(2, [turn])
    assert (row["num_equal"], row["num_compared"], row["ids_equal"]) == (3, 4, False)
    table = Console(width=400)
    with table.capture() as captured:
        table.print(scaling_table([row]))
    assert "3 of 4 DIFFERENT" in captured.get()


@pytest.mark.spec("N-18")
def test_without_cores_to_hold_nothing_is_said_of_sharing(monkeypatch):
    row = scaling_row(2, [Turn(run_of(1.0), run_of(1.0), None)])
    assert (row["sharing_tokens_per_second"], row["ratio_to_sharing"]) == (None, None)
    assert len(scaling_table([row]).columns) == len(SCALING_COLUMNS)
    monkeypatch.delattr(os, "sched_setaffinity")
    assert bench_cores.two_cores() is None
    with held_here(None):
        pass


@needs_two_cores
def test_a_process_and_what_it_starts_later_stay_on_their_core():
    cores = two_cores()
    assert cores is not None
    code = (
        "import os, sys, threading; sys.stdin.read(1); seen = []\n"
        "t = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))\n"
        "t.start(); t.join(); print(sorted(seen[0]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    hold(process.pid, cores.drafting)
    assert process.communicate("x")[0].strip() == f"[{cores.drafting}]"
    before = os.sched_getaffinity(0)
    with held_here(Cores(cores.verifying, cores.drafting)):
        assert os.sched_getaffinity(0) == {cores.drafting}
    assert os.sched_getaffinity(0) == before


@pytest.mark.spec("N-18")
def test_each_number_at_once_has_a_row_with_the_ids_of_plain_decoding(tmp_path):
    given = ("--max-tokens", "6", "--rounds", "1", "--held-out", "2", "--json")
    done = run_here("bench", "--concurrency", "1,2", *given, home=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [row["concurrency"] for row in said["scaling"]] == [1, 2]
    assert (said["cores"] is None) == (two_cores() is None)
    for row in said["scaling"]:
        assert row["ids_equal"] is True
        assert row["num_compared"] == row["concurrency"] * (1 if said["cores"] is None else 2)
        assert row["apart_tokens_per_second"] > 0
        assert row["bound"] >= 1


def test_a_list_of_numbers_at_once():
    assert concurrencies_of("1,2, 8") == [1, 2, 8]


@pytest.mark.parametrize("text", ["0", "1,65", "two", "", "1,,2", "-1"])
def test_a_number_at_once_that_is_none_is_refused(text):
    with pytest.raises(Refused, match="--concurrency is"):
        concurrencies_of(text)


def test_a_list_needs_nodes_of_its_own(tmp_path):
    done = run_here("bench", "--concurrency", "1,2", "--embedded", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--concurrency 1,2 needs nodes of its own" in done.stderr
