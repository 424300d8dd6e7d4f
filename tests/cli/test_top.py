"""`kakeya top`: one look, as a table and as JSON; and on a terminal until Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time

import pytest

from tests.cli.nodes import KAKEYA, PATIENCE_S, environment, run_here, run_kakeya, running_node
from tests.live.checkpoint import write_folder


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("top")
    folder = write_folder(home / "tiny", seed=3)
    with running_node(home, "--verifier", str(folder), "--node-id", "attic[bold]") as node:
        asked = ("generate", "--node", node.grpc, "--num-drafts", "3", "--max-tokens", "40")
        assert run_here(*asked, "one two one two one", home=home).returncode == 0
        yield node, home


def test_one_look_is_the_overview_of_the_page(node):
    there, home = node
    done = run_here("top", "--json", "--node", there.grpc, home=home)
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert view["self"] == "attic[bold]"
    assert view["speculation"]["drafts"] > 0
    assert view["verifier"]["state"] == "ready"


def test_away_from_a_terminal_it_prints_one_table(node):
    there, home = node
    done = run_here("top", "--node", there.grpc, home=home)
    assert done.returncode == 0, done.stderr
    assert "attic[bold] (this)" in done.stdout  # a name is text, not markup
    assert "acceptance length" in done.stdout
    assert "tiny (ready)" in done.stdout
    assert "%" in done.stdout


def test_on_a_terminal_it_goes_on_until_ctrl_c(node):
    there, home = node
    ours, theirs = pty.openpty()
    watching = subprocess.Popen(
        [*KAKEYA, "top", "--every", "0.1", "--node", there.grpc],
        env=environment(home) | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        stdout=theirs, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(theirs)
    seen = b""
    over = time.monotonic() + PATIENCE_S
    while seen.count(b"attic[bold]") < 5 and time.monotonic() < over:
        seen += os.read(ours, 65536)
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=PATIENCE_S)
    os.close(ours)
    assert seen.count(b"attic[bold]") >= 5
    assert watching.returncode == 130
    assert said == b""


def test_what_is_wrong_is_one_line(node, tmp_path):
    there, _ = node
    assert "--every is 0" in run_here("top", "--every", "0", home=tmp_path).stderr
    away = run_kakeya("top", "--node", "127.0.0.1:1", home=tmp_path)
    assert (away.returncode, away.stdout) == (69, "")
    assert len(away.stderr.strip().splitlines()) == 1
    assert there.process.poll() is None
