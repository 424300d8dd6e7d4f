"""Every command of the README is one that a test runs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.nodes import KAKEYA, PATIENCE_S, environment, eventually, fleet_view, run_kakeya
from tests.cli.nodes import running_node as started

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
JUST = str(Path(sys.executable).with_name("just"))

# What each command is held by: a test of this module, or where else it is run.
RUN_BY = {
    "pip install rust-just && just run-node": ".ci/run",
    "just test": ".ci/run",
    "just run-node --host 0.0.0.0 --insecure": "test_three_machines_as_the_readme_starts_them",
    "just run-node --host 0.0.0.0 --insecure --verifier none --peer 192.168.1.10:50051": (
        "test_three_machines_as_the_readme_starts_them"
    ),
    "just run-node --port 50052 --http-port 0 --verifier none --peer 127.0.0.1:50051": (
        "test_three_machines_as_the_readme_starts_them"
    ),
    "just kakeya fleet": "test_three_machines_as_the_readme_starts_them",
    "just kakeya fleet plan": "test_three_machines_as_the_readme_starts_them",
    'just kakeya generate "Why is the sky blue?"': "test_the_readmes_generations",
    'just kakeya generate --json --max-tokens 60 "Repeat this list: alpha, beta, gamma, delta."': (
        "test_the_readmes_generations"
    ),
    'just kakeya generate --json --plain "Write a haiku about rain."': (
        "test_the_readmes_generations"
    ),
    'just kakeya generate --json "Write a haiku about rain."': "test_the_readmes_generations",
    "just bench --max-tokens 40": "test_the_readmes_benchmark",
    "just kakeya run --help": "test_the_readmes_questions_about_settings",
    "just kakeya config show": "test_the_readmes_questions_about_settings",
    "just kakeya spec config": "test_the_readmes_questions_about_settings",
}


def commands() -> list[str]:
    """Every line of the README's `sh` blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def just(*args: str) -> str:
    done = subprocess.run(
        [JUST, *args], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def words_of(command: str) -> list[str]:
    """What `kakeya` is given by a README command, by the recipe's own text."""
    recipe, *args = shlex.split(command.removeprefix("just "))
    last = just("--dry-run", recipe, *args).splitlines()[-1]
    verb = re.fullmatch(r'@?exec \.venv/bin/kakeya ?(\w*) ?"\$@"', last)
    assert verb, last
    return [*filter(None, verb.groups()), *args]


def test_every_command_of_the_readme_is_run():
    assert sorted(set(commands())) == sorted(RUN_BY)
    held = {where for where in RUN_BY.values() if where != ".ci/run"}
    assert held <= set(globals())


def test_ci_runs_what_the_readme_says():
    said = (ROOT / ".ci" / "run").read_text()
    assert "rust-just" in said
    assert "just test" in said


@pytest.mark.parametrize("recipe", sorted(set(re.findall(r"\bjust ([a-z][a-z-]+)", README))))
def test_each_recipe_the_readme_names_is_there_and_is_explained(recipe):
    assert recipe in just("--summary").split()
    line = next(line for line in just("--list").splitlines() if line.split()[:1] == [recipe])
    assert "#" in line


def test_run_node_and_test_make_the_environment_when_it_is_missing():
    for recipe in ("run-node", "test", "kakeya", "bench", "sim", "check", "proto"):
        assert "-m venv .venv" in just("--dry-run", recipe)


@pytest.mark.timeout(180)
def test_three_machines_as_the_readme_starts_them(tmp_path):
    """The ports, and the first machine's address and model, are this test's own."""
    first = words_of("just run-node --host 0.0.0.0 --insecure")
    drafts = words_of(
        "just run-node --host 0.0.0.0 --insecure --verifier none --peer 192.168.1.10:50051"
    )
    here = words_of(
        "just run-node --port 50052 --http-port 0 --verifier none --peer 127.0.0.1:50051"
    )
    quick = ("--fleet-interval", "0.5")
    with started(tmp_path, *first[1:], *quick, "--verifier", "none") as attic:
        port = attic.grpc.rpartition(":")[2]
        to_attic = {"192.168.1.10:50051": f"127.0.0.1:{port}", "127.0.0.1:50051": attic.grpc}
        mine = [to_attic.get(word, word) for word in drafts[1:]]
        also = [to_attic.get(word, "0" if word == "50052" else word) for word in here[1:]]
        with started(tmp_path, *mine, *quick) as cellar, started(tmp_path, *also, *quick):
            eventually(lambda: len(fleet_view(cellar, tmp_path)) == 3)
            for command in ("just kakeya fleet", "just kakeya fleet plan"):
                done = run_kakeya(*words_of(command), "--port", port, home=tmp_path)
                assert done.returncode == 0, done.stderr
                assert cellar.node_id in done.stdout


def test_the_readmes_questions_about_settings(tmp_path):
    for command, answer in (
        ("just kakeya run --help", "--verifier"),
        ("just kakeya config show", "num_drafts"),
        ("just kakeya spec config", "KAKEYA_FLEET_TTL_S"),
    ):
        done = run_kakeya(*words_of(command), home=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert answer in done.stdout


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_readmes_generations(tmp_path):
    """On one node with the default model; fewer tokens where the README leaves the number open."""
    with started(tmp_path) as node:
        port = node.grpc.rpartition(":")[2]

        def answer(command: str, *more: str) -> str:
            done = run_kakeya(*words_of(command), "--port", port, *more, home=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        sky = answer('just kakeya generate "Why is the sky blue?"', "--max-tokens", "20")
        assert len(sky.split()) > 5
        alpha = json.loads(answer(
            "just kakeya generate --json --max-tokens 60"
            ' "Repeat this list: alpha, beta, gamma, delta."'
        ))  # fmt: skip
        assert "alpha, beta, gamma, delta" in alpha["text"].lower()
        few = ("--max-tokens", "30")
        haiku = '"Write a haiku about rain."'
        plain = json.loads(answer(f"just kakeya generate --json --plain {haiku}", *few))
        drafted = json.loads(answer(f"just kakeya generate --json {haiku}", *few))
        assert plain["ids"] == drafted["ids"]


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_readmes_benchmark(tmp_path):
    """One round of few tokens; what it measures is not judged here."""
    words = words_of("just bench --max-tokens 40")
    args = [word if word != "40" else "8" for word in words]
    done = run_kakeya(*args, "--embedded", "--verify", home=tmp_path, timeout_s=500)
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout


def test_the_ready_line_is_the_readmes(tmp_path):
    shape = re.search(r"^ready (.*)$", README, re.MULTILINE)
    assert shape
    keys = [part.partition("=")[0] for part in shape[1].split()]
    process = subprocess.Popen(
        [*KAKEYA, "run", "--port", "0", "--http-port", "0", "--verifier", "none"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
    finally:
        process.kill()
        process.wait(PATIENCE_S)
    assert [part.partition("=")[0] for part in ready[1:]] == keys
