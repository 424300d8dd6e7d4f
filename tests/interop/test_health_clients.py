"""A real node's health and reflection, as grpcio's own client packages see them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.nodes import PATIENCE_S, running_node

CLIENT = Path(__file__).with_name("health_client.py")
KEY = "0123456789abcdef0123456789abcdef"


def asking(address, question, key=""):
    command = [sys.executable, str(CLIENT), address, key, question]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(client):
    try:
        said, _ = client.communicate(timeout=PATIENCE_S)
    finally:
        client.kill()
    assert client.returncode == 0
    return json.loads(said.splitlines()[-1])


@pytest.fixture
def node(tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    args = ("--verifier", "none", "--fleet-key-file", str(key_file), "--set", "node.drain_s=1")
    with running_node(tmp_path, *args) as running:
        yield running


@pytest.mark.spec("R-16", "R-18", "R-19")
def test_health_is_open_and_reflection_asks_for_the_key(node):
    assert answer(asking(node.grpc, "check")) == {
        "": "SERVING",
        "kakeya.v1.ProposerService": "SERVING",
        "grpc.health.v1.Nothing": "NOT_FOUND",
    }
    assert answer(asking(node.grpc, "describe")) == "UNAUTHENTICATED"
    services = answer(asking(node.grpc, "describe", KEY))
    assert services["kakeya.v1.ProposerService"] == ["ProposeBlock"]
    assert services["grpc.health.v1.Health"] == ["Check", "Watch"]
    assert "ExchangeCapabilities" in services["kakeya.v1.CapabilityService"]


@pytest.mark.spec("N-02", "R-18")
def test_a_node_that_drains_says_first_that_it_does_not_serve(node):
    watching = asking(node.grpc, "watch")
    assert watching.stdout.readline() == "watching\n"
    assert node.end() == 0
    heard = answer(watching)
    assert heard[:2] == ["SERVING", "NOT_SERVING"]
    # Whatever ends the stream ends it; the client does not wait for its deadline.
    assert "DEADLINE_EXCEEDED" not in heard
