"""A folder that is damaged ends the command before anything is loaded, with one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from kakeya.config.settings import ConfigError, Settings
from kakeya.embedded.models import TINY_FOLDER
from kakeya.errors import Refused
from kakeya.node.backend import Host
from kakeya.node.preflight import demand_loadable
from tests.cli.nodes import run_here, run_kakeya
from tests.node.damage import DRAFTERS, MISSING, VERIFIERS, Case

HOST = Host(frozenset({"torch"}), is_apple_silicon=False)
# What a node with nothing amiss would go on to do.
ANY_PORT = ("--port", "0", "--http-port", "off")


def of(cases: Sequence[Case], name: str) -> Case:
    return next(case for case in cases if case.name == name)


def damaged(kind: str, case: Case, home: Path) -> Path:
    folder = home / "made"
    shutil.copytree(TINY_FOLDER / kind, folder)
    case.damage(folder)
    return folder


def demand_told(case: Case, settings: Settings) -> None:
    """The case's words, on one line that names the model, under the case's status."""
    with pytest.raises((Refused, ConfigError)) as raised:
        demand_loadable(settings, os.environ, HOST)
    error = raised.value
    line = error.why if isinstance(error, Refused) else str(error)
    assert case.words in line
    assert "\n" not in line
    assert "made" in line.partition(": ")[0]
    status = MISSING if isinstance(error, Refused) else 78
    assert status == case.status
    assert not isinstance(error, Refused) or error.status == "NOT_FOUND"


@pytest.mark.spec("N-20", "V-11", "V-20")
@pytest.mark.parametrize("case", VERIFIERS, ids=str)
def test_a_damaged_verifier_is_named(case: Case, tmp_path: Path):
    folder = damaged("verifier", case, tmp_path)
    demand_told(case, Settings(verifier=str(folder), proposer=()))


@pytest.mark.spec("N-20", "M-08", "M-12")
@pytest.mark.parametrize("case", DRAFTERS, ids=str)
def test_a_damaged_drafter_is_named(case: Case, tmp_path: Path):
    folder = damaged("drafter", case, tmp_path)
    demand_told(case, Settings(verifier="none", proposer=("ngram", f"{folder}@tiny")))


@pytest.mark.spec("N-20")
@pytest.mark.parametrize("case", VERIFIERS[2:6], ids=str)
def test_a_damaged_proposer_by_prefix_is_named(case: Case, tmp_path: Path):
    folder = damaged("dlm", case, tmp_path)
    demand_told(case, Settings(verifier="none", proposer=(str(folder),)))


@pytest.mark.spec("N-20")
def test_what_ships_is_in_order():
    proposers = ("ngram", "tiny", "tiny-verifier", "tiny-dlm")
    demand_loadable(Settings(verifier="tiny", proposer=proposers), os.environ, HOST)
    none = Host(frozenset(), is_apple_silicon=False)
    demand_loadable(Settings(verifier="none"), os.environ, none)


@pytest.mark.spec("N-20", "N-21", "N-23")
@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (("--memory-limit", "2MB"), 78, "memory_limit is 2.0 MB (2000000 bytes), needed are"),
        (("--backend", "tpu"), 78, "backend is 'tpu'"),
        (("--verifier", "org/nowhere"), 69, "kakeya models pull org/nowhere"),
        (("--proposer", "org/nowhere@tiny"), 69, "kakeya models pull org/nowhere"),
    ],
)
def test_run_ends_before_it_starts(args, status, words, tmp_path):
    verifier = () if "--verifier" in args else ("--verifier", "tiny")
    done = run_here("run", *verifier, *ANY_PORT, *args, home=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.spec("N-20")
@pytest.mark.parametrize(
    ("kind", "case"),
    [("verifier", of(VERIFIERS, "a pickle")), ("drafter", of(DRAFTERS, "aux beyond"))],
    ids=str,
)
def test_a_real_process_says_so_in_one_line(kind: str, case: Case, tmp_path: Path):
    folder = damaged(kind, case, tmp_path)
    named = f"{folder}@tiny" if kind == "drafter" else str(folder)
    flags = {"verifier": ("--verifier", named), "drafter": ("--proposer", named)}[kind]
    none = ("--verifier", "none") if kind == "drafter" else ()
    done = run_kakeya("run", *ANY_PORT, *none, *flags, home=tmp_path)
    assert (done.returncode, done.stdout) == (case.status, "")
    assert done.stderr.count("\n") == 1
    assert case.words in done.stderr


@pytest.mark.spec("N-20")
def test_generate_with_a_node_of_its_own_says_so_too(tmp_path: Path):
    cut = of(VERIFIERS, "cut")
    folder = damaged("verifier", cut, tmp_path)
    args = ("generate", "--embedded", "--verifier", str(folder), "hi")
    done = run_here(*args, home=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert cut.words in done.stderr
