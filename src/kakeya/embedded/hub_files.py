"""Which files of a repository make a model, out of the server's list.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from kakeya.config.hub import HubLimits
from kakeya.errors import Refused, demand

# Patterns of what is fetched, in that order: small files first, they say whether the weights are
# worth it.
FETCHED = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "tokenizer.json",
    "ftheta.safetensors",
    "model*.safetensors",
)
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
# Such files run code when they are read.
_PICKLE = re.compile(r".*\.(bin|pt|pth|ckpt|pkl)")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """hash: 64 hex digits are the sha256 of what it holds, 40 are git's."""

    name: str
    num_bytes: int
    hash: str

    @property
    def is_weights(self) -> bool:
        return self.name.endswith(".safetensors")


@dataclass(frozen=True, slots=True)
class RepoList:
    """The files of a model at one commit, in the order they are fetched."""

    commit: str
    files: tuple[RepoFile, ...]


class _Large(msgspec.Struct):
    sha256: str = ""
    size: int = -1


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    blobId: str | None = None  # noqa: N815 - the server's name
    lfs: _Large | None = None


class _Answer(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


def read_list(repo: str, body: bytes, limits: HubLimits) -> RepoList:
    """What to fetch of `repo`, by the server's answer.

    Raises Refused: UNAVAILABLE for an answer that is none, FAILED_PRECONDITION for a repository
    without config.json or without weights in safetensors, or with a file of unknown hash or size.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        raise Refused("UNAVAILABLE", f"the server's list of {repo} is none") from None
    demand(_COMMIT.fullmatch(answer.sha) is not None, "UNAVAILABLE", f"{repo} has no commit")
    names = {each.rfilename: each for each in answer.siblings}
    chosen = {
        name: each
        for pattern in FETCHED
        for name, each in sorted(names.items())
        if fnmatchcase(name, pattern) and _SAFE_NAME.fullmatch(name)
    }
    demand("config.json" in chosen, "FAILED_PRECONDITION", f"{repo} has no config.json")
    has_weights = any(fnmatchcase(name, "model*.safetensors") for name in chosen)
    demand(has_weights, "FAILED_PRECONDITION", _without_weights(repo, list(names)))
    demand(
        len(chosen) <= limits.max_files,
        "RESOURCE_EXHAUSTED",
        f"{repo} has {len(chosen)} files, the limit is {limits.max_files}",
    )
    return RepoList(answer.sha, tuple(_file(repo, each) for each in chosen.values()))


def _file(repo: str, found: _Sibling) -> RepoFile:
    is_large = found.lfs is not None
    size = found.lfs.size if found.lfs is not None else found.size
    digest = (found.lfs.sha256 if found.lfs is not None else found.blobId) or ""
    wanted_len = 64 if is_large else 40
    demand(
        size is not None
        and 0 <= size < 1 << 50
        and _HASH.fullmatch(digest) is not None
        and len(digest) == wanted_len,
        "FAILED_PRECONDITION",
        f"the server says no size and hash of {found.rfilename} of {repo}: it cannot be checked",
    )
    assert size is not None
    return RepoFile(found.rfilename, size, digest)


def _without_weights(repo: str, names: list[str]) -> str:
    pickles = [name for name in names if _PICKLE.fullmatch(name)]
    told = f"; {pickles[0]} is a pickle, which is never fetched" if pickles else ""
    return f"{repo} has no model*.safetensors{told}"


__all__ = ["FETCHED", "RepoFile", "RepoList", "read_list"]
