"""The commands as a shell sees them: output, exit status, and one line for what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest

from kakeya.cli.exit_codes import Exit
from kakeya.cli.spec import TABLES
from kakeya.config.settings import env_name, keys
from tests.cli.nodes import KAKEYA, PATIENCE_S, environment, run_here, run_kakeya, running_node
from tests.spec_tables import table

VERBS = ("run", "generate", "fleet", "top", "bench", "models", "spec", "config", "config show")


@pytest.fixture
def kakeya(tmp_path):
    """Runs a command in this process: (status, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        done = run_here(*args, home=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_goes_to_stdout_with_status_0(verb, kakeya):
    status, out, err = kakeya(*verb.split(), "--help")
    assert (status, err) == (0, "")
    assert f"Usage: kakeya {verb}".strip() in out


def test_no_color_is_honoured_and_forced_colour_is_seen(tmp_path):
    for more, is_coloured in (({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        done = subprocess.run(
            [*KAKEYA, "run", "--help"],
            env=environment(tmp_path) | {"FORCE_COLOR": "1", "TERM": "xterm"} | more,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        colours = re.findall(r"\x1b\[[0-9;]*?3[0-7]m", done.stdout)
        assert bool(colours) is is_coloured


def test_version_is_one_number(tmp_path):
    done = run_kakeya("--version", home=tmp_path)
    assert done.returncode == 0
    assert done.stdout.strip().count(".") == 2


@pytest.mark.spec("N-06")
@pytest.mark.parametrize(
    ("line", "status", "names"),
    [
        ("run --prot 5", Exit.USAGE, ("--prot", "--port")),
        ("generate --max-token 5 hi", Exit.USAGE, ("--max-tokens",)),
        ("generat hi", Exit.USAGE, ("generate",)),
        ("fleet plann", Exit.USAGE, ("plann", "plan")),
        ("spec nope", Exit.USAGE, ("nope", "session", "config")),
        ("bench nope", Exit.USAGE, ("nope", "rpc")),
        ("run --port many", Exit.USAGE, ("--port", "many")),
        ("generate --max-tokens 0 hi", Exit.USAGE, ("--max-tokens", "0")),
        ("generate --seed -1 hi", Exit.USAGE, ("--seed", "-1")),
        ("generate --top-k -1 hi", Exit.USAGE, ("--top-k", "-1")),
        ("generate --file nowhere.txt", Exit.USAGE, ("nowhere.txt",)),
        ("generate --file a.txt hi", Exit.USAGE, ("--file",)),
        ("generate --node here hi", Exit.USAGE, ("here", "HOST:PORT")),
        ("run --port 70000", Exit.CONFIG, ("70000", "65535")),
        ("run --kv half", Exit.CONFIG, ("half", "full", "window")),
        ("run --config nowhere.toml", Exit.CONFIG, ("nowhere.toml",)),
        ("run --set nonsense", Exit.CONFIG, ("nonsense",)),
        ("run --set node.drain=1", Exit.CONFIG, ("node.drain_s",)),
        ("fleet --port 1", Exit.UNAVAILABLE, ("127.0.0.1:1",)),
        ("generate --node 127.0.0.1:1 hi", Exit.UNAVAILABLE, ("127.0.0.1:1",)),
        ("generate --embedded --verifier nowhere hi", Exit.UNAVAILABLE, ("nowhere",)),
        ("run --port 0 --proposer nonesuch", Exit.UNAVAILABLE, ("nonesuch", "ngram")),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it_and_a_status(line, status, names, kakeya):
    ended, out, err = kakeya(*line.split())
    assert (ended, out) == (status, ""), err
    said = [line for line in err.splitlines() if not line.startswith("{")]  # logs apart
    assert len(said) == 1, err
    assert said[0].startswith("kakeya: ")
    for name in names:
        assert name in said[0]


@pytest.mark.spec("N-06")
def test_a_real_process_ends_with_the_same_line_and_status(tmp_path):
    done = run_kakeya("run", "--prot", "5", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kakeya: Unknown option: --prot. Did you mean --port?\n"


def test_the_statuses_are_those_of_the_spec():
    rows = table("node.md", "status", "name", "when")
    assert {int(number): name for number, name, _ in rows} == {e.value: e.name for e in Exit}


def test_a_reader_that_leaves_is_no_trace(tmp_path):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "wb") as gone:
        done = subprocess.run(
            [*KAKEYA, "spec", "config"],
            env=environment(tmp_path),
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (Exit.FAILURE, "")


def test_sigint_in_a_command_that_waits_is_130_without_a_trace(tmp_path):
    waiting = subprocess.Popen(
        [*KAKEYA, "generate"],  # for its prompt, on stdin
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _until_it_reads(waiting.pid)
        waiting.send_signal(signal.SIGINT)
        said = waiting.communicate(timeout=PATIENCE_S)
    finally:
        waiting.kill()
    assert (waiting.returncode, *said) == (130, "", "")


def _until_it_reads(pid: int) -> None:
    over = time.monotonic() + PATIENCE_S
    while "pipe" not in (where := open(f"/proc/{pid}/wchan").read()):  # noqa: SIM115
        assert time.monotonic() < over, where
        time.sleep(0.02)


@pytest.mark.spec("N-03")
def test_flag_beats_environment_beats_file_in_the_real_command(tmp_path):
    folder = tmp_path / "config" / "kakeya"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("port = 1\nsink = 1\nwindow = 101\n[node]\ndrain_s = 1.5\n")
    done = subprocess.run(
        [*KAKEYA, "config", "show", "--json", "--port", "3"],
        env=environment(tmp_path) | {"KAKEYA_PORT": "2", "KAKEYA_SINK": "2"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}
    assert rows["port"] == (3, "flag")
    assert rows["sink"] == (2, "environment")
    assert rows["window"] == (101, "file")
    assert rows["node.drain_s"] == (1.5, "file")
    assert rows["kv"] == ("full", "default")
    assert list(rows) == list(keys())


@pytest.mark.spec("N-03")
@pytest.mark.parametrize("origin", ["environment", "file"])
def test_an_unknown_key_is_status_78_and_names_the_nearest(origin, tmp_path):
    folder = tmp_path / "config" / "kakeya"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("prot = 1\n" if origin == "file" else "")
    more = {"KAKEYA_PROT": "1"} if origin == "environment" else {}
    done = subprocess.run(
        [*KAKEYA, "config", "show"],
        env=environment(tmp_path) | more,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == Exit.CONFIG
    assert "did you mean" in done.stderr
    assert "port" in done.stderr.lower().split("did you mean")[1]


def test_config_show_for_people_has_a_line_a_key(tmp_path):
    done = run_kakeya("config", "show", "--window", "99", home=tmp_path)
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines()}
    assert lines["window"][1:] == ["99", "flag"]
    assert set(lines) == set(keys())


@pytest.mark.spec("N-01")
def test_spec_node_prints_the_phase_table_of_the_spec(tmp_path):
    done = run_kakeya("spec", "node", home=tmp_path)
    printed = [tuple(line.replace("--", " ").replace(">", " ").split()) for line in
               done.stdout.splitlines()]  # fmt: skip
    assert printed == table("node.md", "phase", "event", "next")


@pytest.mark.spec("S-01")
def test_spec_session_prints_the_session_table_of_the_spec(tmp_path):
    done = run_here("spec", "session", home=tmp_path)
    printed = [
        tuple(line.replace("--", " ").replace(">", " ").replace("|", " ").split())
        for line in done.stdout.splitlines()
    ]
    rows = table("session.md", "state", "request", "next", "guard", "refused with")
    assert printed == [
        (state, request, *following.split()) for state, request, following, *_ in rows
    ]


def test_spec_config_has_every_key_with_its_variable(tmp_path):
    done = run_kakeya("spec", "config", home=tmp_path)
    printed = [line.split()[:2] for line in done.stdout.splitlines()]
    assert printed == [[key, env_name(key)] for key in keys()]


def test_spec_without_a_name_lists_its_tables(tmp_path):
    assert run_kakeya("spec", home=tmp_path).stdout.split() == list(TABLES)


def test_models_says_which_verifiers_there_are(tmp_path):
    done = run_kakeya("models", "--json", home=tmp_path)
    assert [row["name"] for row in json.loads(done.stdout)] == ["smollm2", "tiny"]
    assert "smollm2" in run_kakeya("models", home=tmp_path).stdout


def test_the_fleet_as_a_table_and_its_plan(tmp_path):
    with running_node(tmp_path, "--verifier", "none", "--node-id", "attic") as node:
        asked = ("fleet", "--node", node.grpc)
        shown = run_kakeya(*asked, home=tmp_path).stdout
        assert "attic (this)" in shown
        assert node.grpc in shown
        plan = run_kakeya("fleet", "plan", "--json", "--node", node.grpc, home=tmp_path)
        assert json.loads(plan.stdout)["plan"]
        other = run_kakeya(
            "fleet", "plan", "--model", "nonesuch", "--node", node.grpc, home=tmp_path
        )
        assert other.returncode == 0
        assert other.stdout != "\n".join(json.loads(plan.stdout)["plan"]) + "\n"


def test_bench_rpc_outside_a_checkout_says_so(tmp_path):
    done = subprocess.run(
        [*KAKEYA, "bench", "rpc"],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == Exit.UNAVAILABLE
    assert "checkout" in done.stderr
