"""House rules a machine can check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "kakeya"
SOURCES = [p for p in sorted(SRC.rglob("*.py")) if "pb" not in p.parts]
TOP_LEVEL = {
    ".ci", ".gitignore", "LICENSE", "README.md", "justfile", "proto", "pyproject.toml",
    "specs", "src", "tests",
}  # fmt: skip


def tracked() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return listing.stdout.splitlines()


def test_the_top_level_is_the_agreed_one():
    assert {name.split("/")[0] for name in tracked()} <= TOP_LEVEL


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(SRC)))
def test_a_source_file_stays_small_and_says_what_it_is_for(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert path.stem not in ("utils", "helpers", "manager", "misc", "common")
    if text.strip():
        assert text.lstrip().startswith('"""')
    assert not re.search(r"#.*\b(TODO|FIXME|XXX)\b(?!.*#\d+)", text)


def test_layers_hold():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
