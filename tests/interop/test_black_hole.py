"""Packets dropped without a reset, in a real kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def may_unshare() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    command = ["unshare", "--net", "ip", "link", "set", "lo", "up"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.spec("R-11")
@pytest.mark.skipif(not may_unshare(), reason="needs unshare, ip and the right to a namespace")
def test_a_dark_link_costs_a_deadline_and_heals():
    command = ["unshare", "--net", sys.executable, "-m", "tests.interop.black_hole"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.split("\n")[:4] == ["before", "deadline", "closed", "after"], done.stderr
