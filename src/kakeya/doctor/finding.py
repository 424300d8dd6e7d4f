"""One line of the doctor's: what was looked at, what was found, and what to do about it.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`do`: one line, never empty for a failure or a warning."""

    check: str
    state: State
    what: str
    do: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(check, "ok", what)


def skipped(check: str, what: str) -> Finding:
    """Not looked at, and why."""
    return Finding(check, "skipped", what)


def warning(check: str, what: str, *, do: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(check, "warning", what, do)


def failed(check: str, what: str, *, do: str) -> Finding:
    return Finding(check, "failed", what, do)


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether nothing failed."""
    return all(each.state != "failed" for each in findings)


__all__ = ["Finding", "State", "failed", "is_well", "ok", "skipped", "warning"]
