"""From the name of a model to the folder it lies in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.embedded.folder import is_whole
from kakeya.embedded.hub_cache import cached_repos, find_repo, is_repo_name
from kakeya.embedded.smollm2 import FOLDER_NAME, Progress, ensure_smollm2
from kakeya.errors import Refused, demand

SMOLLM2 = "smollm2"
# What the default model also goes by.
EMBEDDED = "embedded"
TINY = "tiny"
TINY_FOLDER = Path(__file__).parent / "tiny"
TINY_ABOUT = "1.4 M parameters, trained on Python's standard library; ships with the package"
SMOLLM2_ABOUT = "SmolLM2-135M-Instruct (Apache-2.0), the default verifier; converted once"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model known by name.  is_ready: its folder is whole, nothing is left to do."""

    name: str
    about: str
    folder: str
    is_ready: bool


def name_of(model: str) -> str:
    """The name a model goes by: a known one's own, a folder's or repository's last part."""
    if model == EMBEDDED:
        return SMOLLM2
    return Path(model).expanduser().name if "/" in model else model


def models_folder(env: Mapping[str, str]) -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/kakeya/models, else under ~/.cache."""
    base = env.get("XDG_CACHE_HOME", "")
    # The base directory specification: a relative path counts as unset.
    cache = Path(base) if base.startswith("/") else Path(env.get("HOME", "~")).expanduser()
    return (cache if base.startswith("/") else cache / ".cache") / "kakeya" / "models"


def list_models(env: Mapping[str, str]) -> list[KnownModel]:
    """Every model known by name, in the order of their names; then the Hugging Face cache's."""
    folder = models_folder(env) / FOLDER_NAME
    tiny = TINY_FOLDER / "verifier"
    cached = [(repo, find_repo(env, repo)) for repo in cached_repos(env)]
    return [
        KnownModel(SMOLLM2, SMOLLM2_ABOUT, str(folder), is_whole(folder)),
        KnownModel(TINY, TINY_ABOUT, str(tiny), (tiny / "model.safetensors").is_file()),
        *(
            KnownModel(repo, "in the Hugging Face cache", str(snapshot), True)
            for repo, snapshot in cached
        ),
    ]


def resolve_model(name: str, env: Mapping[str, str], progress: Progress) -> Path:
    """The folder of a model: a known name (made now when it is missing), a folder's path, or a
    repository of the Hugging Face cache.

    Takes seconds to minutes the first time; run it off the loop.  Raises Refused(NOT_FOUND).
    """
    if name_of(name) == SMOLLM2 and "/" not in name:
        return ensure_smollm2(models_folder(env), progress)
    return find_model(name, env)


def find_model(name: str, env: Mapping[str, str]) -> Path:
    """As resolve_model, for what needs no making: smollm2 must be whole.  Raises Refused."""
    if name in (SMOLLM2, EMBEDDED):
        folder = models_folder(env) / FOLDER_NAME
        demand(is_whole(folder), "NOT_FOUND", "smollm2 is not converted yet: kakeya models pull")
        return folder
    if name == TINY:
        return TINY_FOLDER / "verifier"
    folder = find_folder(name, env, kind="model", known=f"{SMOLLM2}, {TINY}")
    if not (folder / "config.json").is_file():
        raise Refused("NOT_FOUND", f"the folder {name!r} holds no config.json")
    return folder


def find_folder(name: str, env: Mapping[str, str], *, kind: str, known: str) -> Path:
    """The folder that `name` is the path of, or the snapshot of the repository it names.

    Nothing is fetched.  Raises Refused(NOT_FOUND) that says what to do.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder
    demand(
        is_repo_name(name),
        "NOT_FOUND",
        f"no {kind} {name!r}: neither a folder nor one of the known names ({known})",
    )
    snapshot = find_repo(env, name)
    if snapshot is None:
        why = f"no {kind} {name!r}: neither a folder nor in the Hugging Face cache"
        raise Refused("NOT_FOUND", f"{why}; fetch it with: kakeya models pull {name}")
    return snapshot
