"""`kakeya bench` compares, and says what it found; its figures are not judged here."""

from __future__ import annotations

import json

import pytest

from tests.cli.nodes import eventually, fleet_view, run_here, run_kakeya, running_node
from tests.live.checkpoint import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("bench") / "tiny", seed=3)


def test_each_kind_of_prompt_is_measured_here_and_on_the_fleet(folder, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_text('"one two one two one two"\n"a"\n')
    with (
        running_node(tmp_path, "--verifier", str(folder), "--node-id", "attic") as attic,
        running_node(
            tmp_path, "--verifier", "none", "--peer", attic.grpc, "--node-id", "cellar",
            "--fleet-interval", "0.5",
        ),
    ):  # fmt: skip
        eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))
        asked = ("bench", "--json", "--node", attic.grpc, "--max-tokens", "12", "--rounds", "2")
        given = ("--prompt-file", str(prompts), "--num-drafts", "3")
        both = json.loads(run_here(*asked, *given, home=tmp_path).stdout)["runs"]
        assert [(r["kind"], r["draft_on"]) for r in both] == [
            ("given", "local"), ("given", "remote"),
        ]  # fmt: skip
        for row in both:
            assert row["ids_equal"] is True
            assert row["prompts"] == 4
            assert row["proposer"] == "ngram"
            assert row["ratio"] > 0
            assert 1 <= row["mean_acceptance_length"] <= 4
            assert len(row["acceptance_by_position"]) == 3
        assert both[0]["drafted_on"] == ["attic"]
        assert "cellar" in both[1]["drafted_on"]
        one = run_here(*asked, *given, "--draft-on", "local", "--kv", "window", home=tmp_path)
        assert [r["draft_on"] for r in json.loads(one.stdout)["runs"]] == ["local"]


def test_verify_prints_a_table_over_the_built_in_prompts(folder, tmp_path):
    done = run_kakeya(
        "bench", "--embedded", "--verifier", str(folder), "--verify", "--busy", "--max-tokens", "4",
        home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines if line.strip()] == ["chat", "edit", "quote", "code"]
    assert "DIFFERENT" not in done.stdout


def test_a_bench_of_no_rounds_is_refused(tmp_path):
    done = run_here("bench", "--rounds", "0", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--rounds is 0" in done.stderr


def test_bench_rpc_in_a_checkout_is_the_checkouts_own(tmp_path):
    done = run_kakeya("bench", "rpc", "--", "--help", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--engines" in done.stdout
