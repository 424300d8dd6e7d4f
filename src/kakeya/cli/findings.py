"""Findings as lines of text."""

from __future__ import annotations

from kakeya.doctor.finding import Finding

MARKS = {"ok": "ok", "warning": "warn", "failed": "FAIL", "skipped": "-"}


def line_of(finding: Finding) -> str:
    """One line; what to do stands behind an arrow."""
    told = f"{MARKS[finding.state]:4} {finding.check}: {finding.what}"
    return f"{told}  -> {finding.do}" if finding.do else told
