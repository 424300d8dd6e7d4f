"""`kakeya models`: list, pull, check, where, as a shell sees them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kakeya.embedded.models import TINY_FOLDER
from tests.cli.nodes import KAKEYA, environment, eventually, run_here
from tests.embedded.hub_server import REPO, Hub, serving
from tests.node.damage import config

VERIFIER = {path.name: path.read_bytes() for path in (TINY_FOLDER / "verifier").iterdir()}
WEIGHTS = VERIFIER["model.safetensors"]
Kakeya = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(VERIFIER) as serves:
        yield serves


@pytest.fixture
def kakeya(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kakeya:
    """`kakeya models` in this process, with a cache of its own."""
    for name in [each for each in os.environ if each.startswith("HF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    return lambda *args: run_here("models", *args, home=tmp_path)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.spec("N-25", "N-28", "N-24")
def test_pulled_found_listed_and_in_order(hub: Hub, kakeya: Kakeya, tmp_path: Path):
    pulled = kakeya("pull", REPO)
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert folder.is_relative_to(tmp_path / "hf" / "hub")
    assert "fetched model.safetensors, 2.9 MB" in pulled.stderr
    assert kakeya("where", REPO).stdout == pulled.stdout
    listed = json.loads(kakeya("list", "--json").stdout)
    assert [row["name"] for row in listed] == ["smollm2", "tiny", REPO]
    checked = kakeya("check", REPO)
    assert checked.returncode == 0
    assert [line.split(":")[1].split() for line in checked.stdout.splitlines()] == [
        ["ok", part] for part in ("config", "weights", "tokenizer", "hashes")
    ]
    own = ("generate", "--embedded", "--json", "--max-tokens", "2", "hi")
    said = run_here(*own, "--verifier", REPO, "--offline", home=tmp_path)
    assert json.loads(said.stdout)["model_id"] == "model", said.stderr


@pytest.mark.spec("N-28")
def test_a_file_that_changed_on_the_disk_is_found(kakeya: Kakeya):
    folder = Path(kakeya("pull", REPO).stdout.strip())
    path = (folder / "model.safetensors").resolve()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    checked = kakeya("check", REPO)
    assert checked.returncode == 1
    (line,) = [line for line in checked.stdout.splitlines() if "FAIL" in line]
    assert "model.safetensors has the hash" in line
    assert "kakeya models pull" in line


@pytest.mark.spec("N-28")
def test_a_folder_out_of_order_has_a_line_for_each_part(kakeya: Kakeya, tmp_path: Path):
    folder = tmp_path / "made"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes(VERIFIER[name])
    config(num_hidden_layers=7, layer_types=None)(folder)
    checked = kakeya("check", "--json", str(folder), "tiny", str(TINY_FOLDER / "drafter"))
    assert checked.returncode == 1
    made, tiny, drafter = json.loads(checked.stdout)
    assert [(each["check"], each["state"]) for each in made["findings"]] == [
        ("config", "ok"),
        ("weights", "failed"),
        ("tokenizer", "failed"),
    ]
    assert "no tokenizer.json" in made["findings"][2]["what"]
    for ready in (tiny, drafter):
        assert {each["state"] for each in ready["findings"]} == {"ok"}


@pytest.mark.spec("N-28")
@pytest.mark.parametrize("verb", ["where", "check"])
def test_a_model_that_is_absent_is_one_line(verb: str, kakeya: Kakeya):
    done = kakeya(verb, "org/nowhere")
    assert done.returncode == 69
    assert "fetch it with: kakeya models pull org/nowhere" in one_line(done)


@pytest.mark.spec("N-27")
@pytest.mark.parametrize(
    ("flags", "env", "who"),
    [
        (("--offline",), {}, "--offline"),
        ((), {"KAKEYA_OFFLINE": "1"}, "--offline"),
        ((), {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ((), {"TRANSFORMERS_OFFLINE": "yes"}, "TRANSFORMERS_OFFLINE"),
    ],
)
def test_offline_nothing_is_asked(
    flags: tuple[str, ...],
    env: Mapping[str, str],
    who: str,
    hub: Hub,
    kakeya: Kakeya,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    if "KAKEYA_OFFLINE" in env:  # runs here are given no variable of ours but in the file
        (tmp_path / "config" / "kakeya").mkdir(parents=True)
        (tmp_path / "config" / "kakeya" / "config.toml").write_text("offline = true\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    done = kakeya("pull", REPO, *flags)
    assert done.returncode == 69
    assert f"{REPO} is not in the Hugging Face cache, and {who} forbids" in one_line(done)
    assert hub.asked == []


@pytest.mark.spec("N-27")
def test_offline_what_is_there_is_found(hub: Hub, kakeya: Kakeya):
    folder = kakeya("pull", REPO).stdout
    hub.asked.clear()
    assert kakeya("pull", REPO, "--offline").stdout == folder
    assert hub.asked == []


@pytest.mark.spec("N-25")
def test_a_hash_that_is_wrong_ends_the_pull(hub: Hub, kakeya: Kakeya):
    hub.announced["model.safetensors"] = WEIGHTS[:-1] + b"!"
    done = kakeya("pull", REPO)
    assert done.returncode == 1
    assert "model.safetensors has sha256" in done.stderr.splitlines()[-1]
    assert kakeya("where", REPO).returncode == 69


@pytest.mark.spec("N-26")
def test_a_model_that_is_not_computed_is_refused_before_its_weights(hub: Hub, kakeya: Kakeya):
    hub.files["config.json"] = b'{"model_type": "mixtral"}'
    done = kakeya("pull", REPO)
    assert "model_type is 'mixtral'" in done.stderr.splitlines()[-1]
    assert "model.safetensors" not in hub.names_asked()


@pytest.mark.spec("N-26")
def test_a_pull_that_was_killed_goes_on_in_another_process(
    hub: Hub, kakeya: Kakeya, tmp_path: Path
):
    hub.cuts["model.safetensors"], hub.hangs = [1_000_000], True
    env = environment(tmp_path)
    with subprocess.Popen([*KAKEYA, "models", "pull", REPO], env=env) as killed:
        cache = tmp_path / "hf" / "hub"
        eventually(lambda: sum(p.stat().st_size for p in cache.rglob("*.incomplete")) == 1_000_000)
        killed.kill()
    hub.hangs = False
    done = kakeya("pull", REPO)
    assert done.returncode == 0, done.stderr
    assert hub.ranges_of("model.safetensors") == ["", "bytes=1000000-"]
    assert hub.sent["model.safetensors"] == len(WEIGHTS)
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == WEIGHTS


def test_what_needs_no_network_is_pulled_too(hub: Hub, kakeya: Kakeya):
    assert kakeya("pull", "tiny").stdout == kakeya("where", "tiny").stdout
    assert kakeya("pull", "nonesuch").returncode == 69
    assert hub.asked == []
