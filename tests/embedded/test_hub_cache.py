"""Repositories of the Hugging Face cache, found and never fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from kakeya.embedded.drafters import proposer_id, resolve_drafter
from kakeya.embedded.hub_cache import (
    cached_repos,
    find_repo,
    hub_folder,
    is_offline,
    is_repo_name,
)
from kakeya.embedded.models import list_models, name_of, resolve_model
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.errors import Refused

COMMIT = "c" * 40


def cached(hub: Path, repo: str, config: str = "{}", commit: str = COMMIT) -> Path:
    """A snapshot as huggingface_hub leaves it."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(config)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    return snapshot


@pytest.mark.spec("N-24")
@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b", "HOME": "/h"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_other_programs_have_it(env, folder):
    assert str(hub_folder(env)) == folder


@pytest.mark.spec("N-24")
def test_a_repository_is_a_model_by_its_name(tmp_path):
    env = {"HF_HUB_CACHE": str(tmp_path), "HOME": "/h"}
    snapshot = cached(tmp_path, "org/Some-Model.1")
    assert find_repo(env, "org/Some-Model.1") == snapshot
    assert resolve_model("org/Some-Model.1", env, lambda words, share: None) == snapshot
    assert name_of("org/Some-Model.1") == "Some-Model.1"
    assert cached_repos(env) == ["org/Some-Model.1"]
    assert [(each.name, each.is_ready) for each in list_models(env)][2:] == [
        ("org/Some-Model.1", True)
    ]


@pytest.mark.spec("N-24")
@pytest.mark.parametrize("main", [None, "", "../../../../etc", "main", "\udcff", "d" * 40])
def test_a_cache_without_a_whole_main_has_no_such_model(tmp_path, main):
    env = {"HF_HUB_CACHE": str(tmp_path), "HOME": "/h"}
    refs = cached(tmp_path, "org/m").parents[1] / "refs" / "main"
    refs.unlink()
    if main is not None:
        refs.write_bytes(main.encode(errors="surrogateescape"))
    assert find_repo(env, "org/m") is None
    assert cached_repos(env) == []
    with pytest.raises(Refused, match="NOT_FOUND.*kakeya models pull org/m"):
        resolve_model("org/m", env, lambda words, share: None)


@pytest.mark.spec("N-24")
@pytest.mark.parametrize(
    ("config", "is_by_prefix"),
    [('{"model_type": "llama"}', True), ('{"dflash_config": {}}', False)],
)
def test_a_repository_is_a_proposer_of_its_kind(tmp_path, config, is_by_prefix):
    env = {"HF_HUB_CACHE": str(tmp_path), "HOME": "/h"}
    snapshot = cached(tmp_path, "org/small", config)
    assert proposer_id("org/small@tiny") == "small"
    choice = resolve_by_prefix("org/small", env)
    assert (choice is not None) == is_by_prefix
    if choice is None:
        drafter = resolve_drafter("org/small@tiny", own_verifier="none", env=env)
        assert (drafter.model_id, drafter.folder, drafter.verifier) == ("small", snapshot, "tiny")
        with pytest.raises(Refused, match="org/small@VERIFIER"):
            resolve_drafter("org/small", own_verifier="none", env=env)


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("org/name", True),
        ("a/b.c-d_e", True),
        ("name", False),
        ("org/name/more", False),
        ("../name", False),
        ("org/..", False),
        ("org/na--me", False),
        ("org/" + "n" * 97, False),
        ("org/na me", False),
        ("/abs/olute", False),
    ],
)
def test_what_may_be_a_repository(name, holds):
    assert is_repo_name(name) is holds


@pytest.mark.parametrize(
    ("env", "holds"),
    [
        ({}, False),
        ({"HF_HUB_OFFLINE": "0"}, False),
        ({"HF_HUB_OFFLINE": "1"}, True),
        ({"TRANSFORMERS_OFFLINE": "True"}, True),
    ],
)
def test_the_network_is_forbidden_by_the_variables_others_heed(env, holds):
    assert is_offline(env) is holds
