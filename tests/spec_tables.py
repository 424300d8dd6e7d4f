"""Reads the tables and rule ids of specs/*.md."""

from __future__ import annotations

import re
from pathlib import Path

SPECS = Path(__file__).resolve().parents[1] / "specs"
RULE = re.compile(r"^- \*\*([A-Z]-\d+)", re.MULTILINE)


def table(name: str, *header: str) -> list[tuple[str, ...]]:
    """Rows of the one table in specs/`name` whose header cells are `header`, as stripped texts."""
    lines = (SPECS / name).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if _cells(line) == header]
    assert len(starts) == 1, f"{name} has {len(starts)} tables headed {header}"
    rows = []
    for line in lines[starts[0] + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(_cells(line))
    assert rows, f"the table {header} of {name} is empty"
    return rows


def rule_ids() -> dict[str, str]:
    """Every rule id of every spec, with the file it stands in."""
    found: dict[str, str] = {}
    for path in sorted(SPECS.glob("*.md")):
        for rule in RULE.findall(path.read_text()):
            assert rule not in found, f"{rule} stands in {found[rule]} and in {path.name}"
            found[rule] = path.name
    return found


def _cells(line: str) -> tuple[str, ...]:
    if not line.startswith("|"):
        return ()
    return tuple(cell.strip().strip("`") for cell in line.strip().strip("|").split("|"))
