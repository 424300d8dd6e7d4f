"""A pull from a server that cuts, lies and forgets: what is kept is whole and checked."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from kakeya.config.hub import HubLimits
from kakeya.embedded.hub_cache import find_repo
from kakeya.embedded.hub_files import RepoFile
from kakeya.embedded.hub_pull import Puller, open_client, pull_repo, token_of
from kakeya.errors import Refused
from tests.embedded.hub_server import COMMIT, REPO, Hub, serving

WEIGHTS = bytes(range(256)) * 4000
FILES = {
    "README.md": b"# a model",
    "pytorch_model.bin": b"\x80\x02}q\x00.",
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "model.safetensors": WEIGHTS,
    "original/model.safetensors": b"another",
}
PULLED = {"config.json", "tokenizer.json", "model.safetensors"}


@dataclass
class Pulling:
    """One host with a cache of its own; what it was told, and how long it waited."""

    env: dict[str, str]
    limits: HubLimits = field(default_factory=HubLimits)
    more: dict[str, Any] = field(default_factory=dict)
    reported: list[tuple[RepoFile, int]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def pull(self) -> Path:
        with open_client(self.env, self.limits) as client:
            puller = Puller(
                client,
                self.env,
                report=lambda file, num_bytes: self.reported.append((file, num_bytes)),
                pause=self.pauses.append,
                limits=self.limits,
                **self.more,
            )
            return pull_repo(REPO, puller)

    def refusal(self) -> Refused:
        with pytest.raises(Refused) as refused:
            self.pull()
        assert "\n" not in refused.value.why
        return refused.value

    def parts(self) -> list[Path]:
        return list(Path(self.env["HF_HUB_CACHE"]).rglob("*.incomplete"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(FILES) as serves:
        yield serves


@pytest.fixture
def host(hub: Hub, tmp_path: Path) -> Pulling:
    return Pulling(host_env(hub, tmp_path))


def host_env(hub: Hub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "HF_HUB_CACHE": str(home / "hub"), "HOME": str(home)}


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.spec("N-25")
def test_a_model_is_pulled_whole_and_once(hub: Hub, host: Pulling):
    snapshot = host.pull()
    assert held(snapshot) == {name: FILES[name] for name in PULLED}
    assert find_repo(host.env, REPO) == snapshot
    assert set(hub.names_asked()) == PULLED, "no pickle, no other folder"
    assert hub.names_asked()[-1] == "model.safetensors"
    done = {file.name: num_bytes for file, num_bytes in host.reported}
    assert done == {name: len(FILES[name]) for name in PULLED}
    hub.asked.clear()
    assert host.pull() == snapshot
    assert hub.names_asked() == []


@pytest.mark.spec("N-25")
def test_other_programs_find_it_in_the_cache(hub: Hub, host: Pulling):
    snapshot = host.pull()
    cache = host.env["HF_HUB_CACHE"]
    assert snapshot_download(REPO, cache_dir=cache, local_files_only=True) == str(snapshot)


@pytest.mark.spec("N-25")
def test_a_newer_commit_shares_the_files_that_are_the_same(hub: Hub, host: Pulling, tmp_path):
    old = host.pull()
    with serving({**FILES, "config.json": b'{"model_type": "qwen3"}'}) as newer:
        host.env["HF_ENDPOINT"] = newer.address
        assert held(host.pull())["config.json"] == b'{"model_type": "qwen3"}'
        assert newer.names_asked() == ["config.json"]
    assert (old / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.spec("N-26")
def test_connections_that_break_are_gone_on_with(hub: Hub, host: Pulling):
    hub.cuts["model.safetensors"] = [300_000, 1, 200_000]
    assert held(host.pull())["model.safetensors"] == WEIGHTS
    starts = ["", "bytes=300000-", "bytes=300001-", "bytes=500001-"]
    assert hub.ranges_of("model.safetensors") == starts
    assert hub.sent["model.safetensors"] == len(WEIGHTS), "nothing came twice"
    assert host.pauses == [1.0] * 3


@pytest.mark.spec("N-26")
def test_a_connection_that_brings_nothing_is_given_up_and_gone_on_with_later(
    hub: Hub, host: Pulling
):
    hub.cuts["model.safetensors"] = [300_000, *[0] * 6]
    refused = host.refusal()
    assert refused.status == "UNAVAILABLE"
    assert f"model.safetensors stopped at 300000 of {len(WEIGHTS)} bytes" in refused.why
    assert host.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert find_repo(host.env, REPO) is None
    hub.asked.clear()
    later = Pulling(host.env)
    assert held(later.pull())["model.safetensors"] == WEIGHTS
    assert hub.names_asked() == ["model.safetensors"], "what was whole is not asked for again"
    assert hub.ranges_of("model.safetensors") == ["bytes=300000-"]
    weights = [num_bytes for file, num_bytes in later.reported if file.is_weights]
    assert weights == sorted(weights)
    assert (weights[0], weights[-1]) == (300_000, len(WEIGHTS))


@pytest.mark.spec("N-26")
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_is_busy_is_asked_again(hub: Hub, host: Pulling, status: int):
    hub.fails = [status, status]
    assert held(host.pull())["config.json"] == FILES["config.json"]
    hub.fails = [status] * 99
    assert (
        f"the server answered {status}"
        in Pulling({**host.env, "HF_HUB_CACHE": f"{host.env['HOME']}/b"}).refusal().why
    )


@pytest.mark.spec("N-26")
def test_a_server_without_ranges_sends_all_again(hub: Hub, host: Pulling):
    hub.ignores_ranges = True
    hub.cuts["model.safetensors"] = [300_000]
    assert held(host.pull())["model.safetensors"] == WEIGHTS
    assert hub.sent["model.safetensors"] == 300_000 + len(WEIGHTS)


@pytest.mark.spec("N-25")
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_another_hash_is_thrown_away(hub: Hub, host: Pulling, name: str):
    hub.announced[name] = FILES[name][:-1] + b"!"
    refused = host.refusal()
    assert refused.status == "DATA_LOSS"
    kind = "sha256" if name == "model.safetensors" else "git hash"
    assert f"{name} has {kind}" in refused.why
    assert host.parts() == []
    assert find_repo(host.env, REPO) is None


@pytest.mark.spec("N-26")
def test_a_beginning_that_is_damaged_is_fetched_again(hub: Hub, host: Pulling):
    hub.cuts["model.safetensors"] = [300_000, *[0] * 6]
    host.refusal()
    (part,) = host.parts()
    part.write_bytes(b"\0" * 300_000)
    assert held(Pulling(host.env).pull())["model.safetensors"] == WEIGHTS
    assert hub.ranges_of("model.safetensors")[-2:] == ["bytes=300000-", ""]
    assert host.parts() == []


@pytest.mark.spec("N-25")
def test_a_file_longer_than_announced_is_refused_in_time(hub: Hub, host: Pulling):
    hub.announced["config.json"] = b"{}"
    refused = host.refusal()
    assert (refused.status, "than the announced 2 bytes" in refused.why) == ("DATA_LOSS", True)


@pytest.mark.spec("N-26")
def test_a_full_disk_is_refused_before_the_first_file(hub: Hub, host: Pulling):
    total = sum(len(FILES[name]) for name in PULLED) + host.limits.spare_disk_bytes
    host.more = {"free_bytes": lambda folder: total - 1}
    refused = host.refusal()
    assert refused.status == "FAILED_PRECONDITION"
    assert f"needs {total} bytes more of disk in the cache, {total - 1} are free" in refused.why
    assert hub.names_asked() == []
    hub.cuts["model.safetensors"] = [300_000, *[0] * 6]
    host.more = {"free_bytes": lambda folder: total}
    assert host.refusal().status == "UNAVAILABLE"
    host.more = {"free_bytes": lambda folder: total - 300_000}
    host.pull()  # what is there already needs no room again


@pytest.mark.spec("N-26")
def test_a_model_that_is_not_computed_is_refused_before_its_weights(hub: Hub, host: Pulling):
    def look(folder: Path) -> None:
        assert (folder / "config.json").read_bytes() == FILES["config.json"]
        raise Refused("UNIMPLEMENTED", "model_type is 'llama'")

    host.more = {"look": look}
    assert host.refusal().why == "model_type is 'llama'"
    assert "model.safetensors" not in hub.names_asked()


@pytest.mark.spec("N-25")
def test_the_token_goes_to_its_server_alone(hub: Hub, host: Pulling):
    host.env["HF_TOKEN"] = hub.token = "hf_secret"
    with serving(FILES) as elsewhere:
        hub.redirects_to = elsewhere.address
        assert held(host.pull())["model.safetensors"] == WEIGHTS
        assert {each.get("authorization") for _, each in hub.asked} == {"Bearer hf_secret"}
        assert len(elsewhere.asked) == len(PULLED)
        assert not any("authorization" in each for _, each in elsewhere.asked)


@pytest.mark.spec("N-25")
def test_without_a_token_the_line_says_what_to_do(hub: Hub, host: Pulling):
    hub.token = "hf_secret"
    refused = host.refusal()
    assert refused.status == "NOT_FOUND"
    assert "127.0.0.1 does not give the model org/model away (401)" in refused.why
    assert "HF_TOKEN" in refused.why
    host.env["HF_TOKEN"] = "hf_other"
    assert "hf_other" not in host.refusal().why


@pytest.mark.spec("N-25")
def test_where_the_token_is_looked_for(tmp_path: Path):
    (tmp_path / "token").write_text("hf_kept\n")
    (tmp_path / "other").write_text("hf_other")
    assert token_of({"HF_HOME": str(tmp_path)}) == "hf_kept"
    kept = {"HF_HOME": str(tmp_path), "HF_TOKEN_PATH": str(tmp_path / "other")}
    assert token_of(kept) == "hf_other"
    assert token_of({**kept, "HF_TOKEN": "hf_given"}) == "hf_given"
    assert token_of({**kept, "HF_TOKEN": ""}) == "hf_other"
    assert token_of({"HOME": str(tmp_path)}) == ""
    with pytest.raises(Refused, match="HF_TOKEN is no token"):
        token_of({"HF_TOKEN": "two\nlines"})


def test_a_server_that_is_not_there_is_named(host: Pulling):
    host.env["HF_ENDPOINT"] = "http://127.0.0.1:1"
    refused = host.refusal()
    assert refused.status == "UNAVAILABLE"
    assert "http://127.0.0.1:1 is not reached" in refused.why
    host.env["HF_ENDPOINT"] = "ftp://there"
    assert "HF_ENDPOINT is 'ftp://there'" in host.refusal().why


def test_a_model_that_the_server_lacks_is_named(hub: Hub, host: Pulling):
    with open_client(host.env, host.limits) as client:
        puller = Puller(client, host.env, report=lambda file, n: None, pause=host.pauses.append)
        with pytest.raises(Refused, match="NOT_FOUND: the model org/nowhere is not at 127.0.0.1"):
            pull_repo("org/nowhere", puller)


def test_a_list_longer_than_its_limit_is_refused(hub: Hub, host: Pulling):
    host.limits = replace(host.limits, max_list_bytes=100)
    assert "is longer than 100 bytes" in host.refusal().why


@pytest.mark.spec("N-26")
def test_one_process_at_a_time_fetches_a_model(hub: Hub, host: Pulling):
    host.pull()
    (lock,) = (Path(host.env["HF_HUB_CACHE"]) / ".locks").rglob("kakeya.lock")
    with lock.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert host.refusal().why == "another process is fetching org/model"
    host.pull()


def test_a_cache_that_cannot_be_written_is_one_line(hub: Hub, host: Pulling, tmp_path: Path):
    (tmp_path / "hub").write_text("a file")
    assert "the cache cannot be written: " in host.refusal().why
    assert os.path.exists(tmp_path / "hub")


def test_main_is_the_commit(hub: Hub, host: Pulling):
    assert host.pull().name == COMMIT
