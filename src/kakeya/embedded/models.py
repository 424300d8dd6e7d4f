"""From the name of a model to the folder it lies in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.embedded.folder import is_whole
from kakeya.embedded.smollm2 import FOLDER_NAME, Progress, ensure_smollm2
from kakeya.errors import Refused, demand

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
    """The name a model goes by: a known one's own, a folder's last part."""
    return Path(model).expanduser().name if "/" in model else model


def models_folder(env: Mapping[str, str]) -> Path:
    """Where converted models are kept: $XDG_CACHE_HOME/kakeya/models, else under ~/.cache."""
    base = env.get("XDG_CACHE_HOME", "")
    # The base directory specification: a relative path counts as unset.
    cache = Path(base) if base.startswith("/") else Path(env.get("HOME", "~")).expanduser()
    return (cache if base.startswith("/") else cache / ".cache") / "kakeya" / "models"


def list_models(env: Mapping[str, str]) -> list[KnownModel]:
    """Every model known by name, in the order of their names."""
    folder = models_folder(env) / FOLDER_NAME
    tiny = TINY_FOLDER / "verifier"
    return [
        KnownModel("smollm2", SMOLLM2_ABOUT, str(folder), is_whole(folder)),
        KnownModel(TINY, TINY_ABOUT, str(tiny), (tiny / "model.safetensors").is_file()),
    ]


def resolve_model(name: str, env: Mapping[str, str], progress: Progress) -> Path:
    """The folder of a model: a known name (made now when it is missing) or a folder's path.

    Takes seconds to minutes the first time; run it off the loop.  Raises Refused(NOT_FOUND).
    """
    if name == "smollm2":
        return ensure_smollm2(models_folder(env), progress)
    if name == TINY:
        return TINY_FOLDER / "verifier"
    folder = Path(name).expanduser()
    known = ", ".join(each.name for each in list_models(env))
    demand(
        bool(name) and folder.is_dir(),
        "NOT_FOUND",
        f"no model {name!r}: neither a folder nor one of the known names ({known})",
    )
    if not (folder / "config.json").is_file():
        raise Refused("NOT_FOUND", f"the folder {name!r} holds no config.json")
    return folder
