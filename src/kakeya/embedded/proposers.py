"""From the name of a model that drafts by prefix to its checkpoint; what kind a folder holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kakeya.embedded.drafters import proposer_id
from kakeya.embedded.hub_cache import find_repo, is_repo_name
from kakeya.embedded.models import TINY_FOLDER

SMOLLM2 = "smollm2"
# The models of the package that draft by prefix, by the names they go by.
KNOWN = {
    "tiny-verifier": TINY_FOLDER / "verifier",
    "tiny-dlm": TINY_FOLDER / "dlm",
}
# config.json is small; more is no config.
MAX_CONFIG_BYTES = 8 << 20
DFLASH_KEY, DIFFUSION_KEY = "dflash_config", "masked_diffusion"


@dataclass(frozen=True, slots=True)
class PrefixChoice:
    """model_id: the name it goes by.  model: a name or folder, as --verifier takes it."""

    model_id: str
    model: str


def resolve_by_prefix(name: str, env: Mapping[str, str] = os.environ) -> PrefixChoice | None:
    """The model that `name` says, where it drafts by prefix; None for a DFlash drafter's name.

    A folder is a DFlash drafter's when its config.json has dflash_config or a verifier is named
    (FOLDER@VERIFIER); any other folder with a config.json is a decoder, or, with
    masked_diffusion, a masked-diffusion model.
    """
    if name in KNOWN:
        return PrefixChoice(name, str(KNOWN[name]))
    if name == SMOLLM2:
        return PrefixChoice(name, name)
    config = read_config(_folder_of(name, env)) if "/" in name and "@" not in name else {}
    if not config or DFLASH_KEY in config:
        return None
    return PrefixChoice(proposer_id(name), name)


def _folder_of(name: str, env: Mapping[str, str]) -> Path:
    """A folder's path, or the snapshot of a repository in the Hugging Face cache."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and is_repo_name(name):
        return find_repo(env, name) or folder
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says; empty where there is none that could be read."""
    try:
        with (folder / "config.json").open("rb") as file:
            raw = json.loads(file.read(MAX_CONFIG_BYTES + 1))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


__all__ = ["DIFFUSION_KEY", "KNOWN", "PrefixChoice", "read_config", "resolve_by_prefix"]
