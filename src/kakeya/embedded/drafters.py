"""From the name of a drafter to its folder, and to the verifier it was made for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.embedded.models import TINY, TINY_FOLDER, find_folder, name_of
from kakeya.errors import demand


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """model_id: the name it goes by.  verifier: a model's name or folder, as --verifier takes."""

    model_id: str
    folder: Path
    verifier: str


def proposer_id(name: str) -> str:
    """The model_id of what --proposer names: a known one's own name, a folder's last part."""
    return name_of(name.partition("@")[0])


def resolve_drafter(
    name: str, *, own_verifier: str, env: Mapping[str, str] = os.environ
) -> DrafterChoice:
    """The drafter that `name` says: tiny, or DRAFTER, or DRAFTER@VERIFIER.

    DRAFTER is a folder or a repository of the Hugging Face cache.  Without a verifier named it is
    the node's own.  Raises Refused(NOT_FOUND).
    """
    if name == TINY:
        return DrafterChoice(TINY, TINY_FOLDER / "drafter", TINY)
    path, _, verifier = name.partition("@")
    known = f"ngram, {TINY}, tiny-verifier, tiny-dlm, smollm2"
    folder = find_folder(path, env, kind="proposer", known=known)
    chosen = verifier or ("" if own_verifier == "none" else own_verifier)
    demand(
        bool(chosen),
        "NOT_FOUND",
        f"the drafter in {path!r} needs its verifier's embedding: name it, {path}@VERIFIER",
    )
    return DrafterChoice(proposer_id(name), folder, chosen)


__all__ = ["DrafterChoice", "proposer_id", "resolve_drafter"]
