"""Repositories of the Hugging Face cache: where they lie on this disk.  Never asks the network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_REPO = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = ("1", "on", "true", "yes")


def is_repo_name(name: str) -> bool:
    """Whether `name` may be a repository: org/name."""
    return _REPO.fullmatch(name) is not None and "--" not in name and ".." not in name


def is_offline(env: Mapping[str, str]) -> bool:
    """Whether the environment forbids the network, in the variables other programs heed."""
    return any(
        env.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def hub_folder(env: Mapping[str, str]) -> Path:
    """The cache: HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in the user's cache."""
    given = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    return hub_home(env) / "hub"


def hub_home(env: Mapping[str, str]) -> Path:
    """Where the Hub's programs keep what is theirs: HF_HOME, else in the user's cache."""
    home = env.get("HF_HOME")
    if home:
        return Path(home).expanduser()
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return Path(cache) / "huggingface"


def repo_folder(env: Mapping[str, str], repo: str) -> Path:
    """Where a repository's blobs and snapshots lie, whether they are there or not."""
    return hub_folder(env) / f"models--{repo.replace('/', '--')}"


def find_repo(env: Mapping[str, str], repo: str) -> Path | None:
    """The snapshot that `main` stands for; None where it is not in the cache."""
    folder = repo_folder(env, repo)
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def cached_repos(env: Mapping[str, str]) -> list[str]:
    """The model repositories of the cache that have a snapshot, by name."""
    try:
        found = [each.name for each in hub_folder(env).glob("models--*--*")]
    except OSError:
        return []
    names = [name.removeprefix("models--").replace("--", "/") for name in sorted(found)]
    return [name for name in names if is_repo_name(name) and find_repo(env, name)]
