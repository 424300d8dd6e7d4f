"""One small checkpoint, and two nodes that every test which only asks may share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.nodes import NodeProcess, eventually, fleet_view, running_node
from tests.live.checkpoint import write_folder

QUICK = ("--fleet-interval", "0.5", "--fleet-ttl", "6", "--log-format", "json")


@dataclass(frozen=True)
class Pair:
    """`attic` verifies, `cellar` drafts."""

    attic: NodeProcess
    cellar: NodeProcess
    home: Path


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("checkpoint"), seed=4)


@pytest.fixture(scope="session")
def slow_folder(tmp_path_factory) -> Path:
    """Steps long enough that something can happen in the middle of a generation."""
    return write_folder(tmp_path_factory.mktemp("slow"), seed=4, hidden_size=256, num_layers=10)


@pytest.fixture(scope="session")
def pair(folder, tmp_path_factory):
    """Two nodes that know each other, float32, full K/V unless a request says otherwise."""
    home = tmp_path_factory.mktemp("pair")
    verifying = ("--verifier", str(folder), "--sink", "2", "--window", "32")
    with (
        running_node(home, *QUICK, *verifying, "--node-id", "attic") as attic,
        running_node(
            home, *QUICK, "--verifier", "none", "--node-id", "cellar", "--peer", attic.grpc
        ) as cellar,
    ):
        eventually(lambda: fleet_view(attic, home).get("cellar", {}).get("models"))
        yield Pair(attic, cellar, home)
