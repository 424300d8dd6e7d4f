"""The printed files are read by the formats' own rules."""

from __future__ import annotations

import configparser
import plistlib
import shlex

import pytest

from kakeya.cli.service_file import launchd, systemd
from tests.cli.nodes import run_here

AWKWARD = [
    "run",
    "--node-id",
    "attic $HOME 100%",
    "--fleet-name",
    'a"b\\c',
    "--peer",
    "[fd00::1]:5",
]


def exec_start(text: str) -> list[str]:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    assert parser["Service"]["Restart"] == "on-failure"
    assert parser["Install"]["WantedBy"] == "default.target"
    words = shlex.split(parser["Service"]["ExecStart"])
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


@pytest.mark.spec("N-16")
def test_a_systemd_unit_runs_what_was_asked_for():
    assert exec_start(systemd(["/opt/my env/python", *AWKWARD])) == ["/opt/my env/python", *AWKWARD]


@pytest.mark.spec("N-16")
def test_a_launch_agent_runs_what_was_asked_for():
    agent = plistlib.loads(launchd(["python", *AWKWARD]).encode())
    assert agent["ProgramArguments"] == ["python", *AWKWARD]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


@pytest.mark.spec("N-16")
def test_the_command_passes_on_what_stands_behind_the_dashes(tmp_path):
    done = run_here(
        "service-file", "systemd", "--", "--host", "0.0.0.0", "--insecure", home=tmp_path
    )
    assert done.returncode == 0, done.stderr
    words = exec_start(done.stdout)
    assert words[1:] == ["-m", "kakeya", "run", "--host", "0.0.0.0", "--insecure"]
    done = run_here("service-file", "launchd", home=tmp_path)
    assert plistlib.loads(done.stdout.encode())["ProgramArguments"][1:] == ["-m", "kakeya", "run"]
    done = run_here("service-file", "windows", home=tmp_path)
    assert done.returncode == 2
    assert "systemd, launchd" in done.stderr
