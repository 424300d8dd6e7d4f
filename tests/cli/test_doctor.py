"""`kakeya doctor` beside real nodes."""

from __future__ import annotations

import json

import pytest

from tests.cli.nodes import eventually, fleet_view, run_here, running_node
from tests.cli.test_tls_nodes import new_ca, tls_home

QUICK = ("--verifier", "none", "--fleet-interval", "0.5", "--fleet-ttl", "6")


def lines_of(home, *args: str) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit status, and the findings by what was checked."""
    done = run_here("doctor", "--json", "--verifier", "none", *args, home=home)
    found = json.loads(done.stdout)
    assert found["ok"] == (done.returncode == 0)
    return done.returncode, {each["check"]: each for each in found["findings"]}


def port_of(node) -> str:
    return node.grpc.rpartition(":")[2]


@pytest.mark.spec("N-13")
def test_two_nodes_that_see_each_other_are_told_so_both_ways(tmp_path):
    with (
        running_node(tmp_path, *QUICK, "--node-id", "attic") as attic,
        running_node(tmp_path, *QUICK, "--node-id", "cellar", "--peer", attic.grpc) as cellar,
    ):
        eventually(lambda: "attic" in fleet_view(cellar, tmp_path))
        here = ("--port", port_of(attic), "--http-port", "off")
        status, found = lines_of(tmp_path, *here, "--peer", cellar.grpc)
        assert status == 0, found
        name = f"peer {cellar.grpc}"
        assert "attic" in found[f"{name}, to here"]["what"]
        for check in ("TLS", "from here", "fleet name", "version", "clock", "to here"):
            assert found[f"{name}, {check}"]["state"] == "ok"
        assert "this host's node" in found["gRPC port"]["what"]
        # Of another fleet, at a peer that nobody runs: each is a failure with its advice.
        status, found = lines_of(
            tmp_path, "--fleet-name", "b", "--port", "0", "--peer", cellar.grpc
        )
        assert status == 1
        assert "--fleet-name" in found[f"{name}, fleet name"]["do"]
        # Some other node has the port that this one would take.
        status, found = lines_of(
            tmp_path, "--port", "0", "--http-port", port_of(attic), "--peer", "127.0.0.1:1"
        )
        assert status == 1
        assert found["HTTP port"]["state"] == "failed"
        assert "nothing listens" in found["peer 127.0.0.1:1, from here"]["do"]


@pytest.mark.spec("N-13", "N-14", "N-15")
def test_a_host_without_peers_is_well_and_says_what_it_did_not_look_at(tmp_path):
    done = run_here(
        "doctor", "--verifier", "tiny", "--proposer", "tiny", "--dtype", "float32",
        "--backend", "torch", "--port", "0", "--http-port", "0", home=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok   exactness torch float32, block of 17") for line in lines)
    assert any(line.startswith("ok   same ids torch float32") for line in lines)
    assert any(line.startswith("ok   pair tiny, tokenizer") for line in lines)
    assert "-    peers: no --peer is given" in lines
    assert not any(" mlx float32" in line or "bfloat16" in line for line in lines)


@pytest.mark.spec("N-13")
def test_a_verifier_that_is_not_there_is_one_line_and_status_1(tmp_path):
    done = run_here("doctor", "--verifier", "no-such-model", "--port", "0", home=tmp_path)
    assert done.returncode == 1
    assert "FAIL verifier: no model 'no-such-model'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.spec("N-12", "N-13")
def test_a_peer_with_tls_and_a_host_without_are_told_apart(tmp_path):
    ca = new_ca(tmp_path / "ca")
    home = tls_home(tmp_path / "attic", ca, "attic", "127.0.0.1")
    with running_node(home, *QUICK, "--node-id", "attic") as attic:
        name = f"peer {attic.grpc}"
        look = ("--port", "0", "--http-port", "off", "--peer", attic.grpc)
        status, found = lines_of(home, *look)
        assert status == 0, found
        assert "TLS 1.3" in found[f"{name}, TLS"]["what"]
        status, found = lines_of(tmp_path, *look)
        assert status == 1
        assert "--tls-cert" in found[f"{name}, from here"]["do"]
    with running_node(tmp_path, *QUICK, "--node-id", "cellar") as cellar:
        status, found = lines_of(home, *look[:-1], cellar.grpc)
        assert status == 1
        assert "kakeya cert issue" in found[f"peer {cellar.grpc}, TLS"]["do"]
