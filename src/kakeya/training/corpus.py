"""The text the tiny set learns from: the Python standard library's own sources (PSF licence).

Split by the hash of each file's path, so that what is held out is the same on every machine.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# Of 256 parts: those below this go to training (about 15 of 28 MB), the others are held out.
TRAIN_PARTS = 138
# Machine-made tables teach nothing; the largest hand-written module is below this.
MAX_FILE_BYTES = 400_000
LEFT_OUT = ("site-packages", "__pycache__", "lib2to3/tests", "test/cjkencodings")


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path under the library's root, and its text."""

    path: str
    text: str


def standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def is_held_out(path: str) -> bool:
    """Whether the file at `path` (relative, with slashes) is kept from training."""
    return hashlib.sha256(path.encode()).digest()[0] >= TRAIN_PARTS


def read_sources(root: Path, *, held_out: bool) -> Iterator[Source]:
    """The .py files of one side of the split, in the order of their paths."""
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if any(part in path for part in LEFT_OUT) or is_held_out(path) != held_out:
            continue
        content = file.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            continue
        try:
            yield Source(path, content.decode())
        except UnicodeDecodeError:
            continue  # a few tests are written in other encodings on purpose


def digest(sources: Sequence[Source]) -> str:
    """One sha256 over paths and texts, for the model card."""
    total = hashlib.sha256()
    for source in sources:
        total.update(source.path.encode() + b"\0" + source.text.encode() + b"\0")
    return total.hexdigest()
