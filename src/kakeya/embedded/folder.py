"""A folder that is either whole or not there: made aside, marked last, renamed into place.

Knows nothing of what is in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MARKER = "complete.json"


@dataclass(frozen=True, slots=True)
class Workplace:
    """A folder of this process alone, locked as long as it works."""

    folder: Path


def is_whole(folder: Path) -> bool:
    """Whether the marker stands and every file it lists has the size it lists."""
    try:
        sizes = json.loads((folder / MARKER).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def workplace(parent: Path, name: str) -> Iterator[Workplace]:
    """An empty folder beside its final place; removed at the end unless it was published."""
    _remove_abandoned(parent, name)
    handle, lock_name = tempfile.mkstemp(prefix=f".{name}.", suffix=".lock", dir=parent)
    folder = Path(lock_name).with_suffix(".part")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.mkdir()
        yield Workplace(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(lock_name).unlink(missing_ok=True)
        os.close(handle)


def publish(here: Workplace, final: Path) -> None:
    """Write the marker and rename the folder to `final`, unless another process was first."""
    sizes = {path.name: path.stat().st_size for path in sorted(here.folder.iterdir())}
    for name in sizes:
        _sync(here.folder / name)
    (here.folder / MARKER).write_text(json.dumps(sizes, indent=2))
    _sync(here.folder / MARKER)
    if not is_whole(final) and final.exists():
        shutil.rmtree(final)
    try:
        here.folder.rename(final)
    except OSError:
        if not is_whole(final):
            raise


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove_abandoned(parent: Path, name: str) -> None:
    """Remove what killed processes left: their locks are free."""
    for lock in parent.glob(f".{name}.*.lock"):
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.with_suffix(".part"), ignore_errors=True)
                lock.unlink(missing_ok=True)
        except OSError:
            continue  # its owner is at work, or was faster
