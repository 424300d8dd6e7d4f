"""`kakeya models`: which models this host has, where they lie, and whether they are in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import Parameter

from kakeya.cli.exit_codes import Exit
from kakeya.cli.findings import line_of
from kakeya.cli.flags import load_settings
from kakeya.doctor.finding import is_well
from kakeya.doctor.folders import folder_findings
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.models import find_model, list_models
from kakeya.embedded.proposers import KNOWN
from kakeya.errors import Refused

Json = Annotated[bool, Parameter(negative="", help="Print JSON.")]

models_app = cyclopts.App(name="models", help="List, fetch and check the models of this host.")
models_app.command(
    "kakeya.cli.models_pull:pull", name="pull", help="Fetch models, and print their folders."
)


@models_app.default
@models_app.command(name="list")
def list_(*, json: Json = False) -> int:
    """List the models known by name, and those of the Hugging Face cache."""
    rows = list_models(os.environ)
    if json:
        print(msgspec.json.encode(rows).decode())
        return Exit.OK
    for row in rows:
        print(f"{row.name:12} {'ready' if row.is_ready else 'on first use':12} {row.about}")
    return Exit.OK


@models_app.command
def where(name: str, /) -> int:
    """Print the folder of a model: a known name, a folder, or org/name of the Hugging Face cache.

    Parameters
    ----------
    name
        What --verifier or --proposer takes.
    """
    print(folder_of(name))
    return Exit.OK


@models_app.command
def check(*names: str, json: Json = False) -> int:
    """Look at models as the loader would, a line for each part; 1 when something is wrong.

    Parameters
    ----------
    names
        What --verifier or --proposer takes; all that are here without any.
    """
    settings = load_settings(None).settings
    here = [each.name for each in list_models(os.environ) if each.is_ready]
    status, rows = Exit.OK, []
    for name in names or here:
        folder = folder_of(name)
        found = list(folder_findings(folder, settings))
        status = status if is_well(found) else Exit.FAILURE
        rows.append({"name": name, "folder": str(folder), "findings": found})
        if not json:
            for each in found:
                print(f"{name}: {line_of(each)}", flush=True)
    if json:
        print(msgspec.json.encode(rows).decode())
    return status


def folder_of(name: str) -> Path:
    """The folder of a verifier, a drafter or a proposer.  Raises Refused(NOT_FOUND)."""
    if name in KNOWN:
        return KNOWN[name]
    try:
        return find_model(name, os.environ)
    except Refused:
        if "@" not in name:
            raise
    return resolve_drafter(name, own_verifier="none").folder


__all__ = ["folder_of", "models_app"]
