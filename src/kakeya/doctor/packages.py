"""Python and the installed packages, against the versions this release was tested with.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kakeya.doctor.finding import Finding, failed, ok, warning
from kakeya.errors import Refused
from kakeya.node.backend import Host, choose_backend

LEAST_PYTHON = (3, 11)
SETUP = "just setup"


def python_finding(version: Sequence[int]) -> Finding:
    shown = ".".join(map(str, version[:3]))
    if tuple(version[:2]) >= LEAST_PYTHON:
        return ok("python", shown)
    least = ".".join(map(str, LEAST_PYTHON))
    return failed("python", f"{shown}, {least} is needed", do=f"install Python {least} or newer")


def pins_of(constraints: str) -> dict[str, str]:
    """Name (normalised) → version, from the lines `name==version` of a constraints file."""
    pairs = (line.partition("#")[0].strip().partition("==") for line in constraints.splitlines())
    return {normalised(name): version for name, equals, version in pairs if equals}


def required_by(requirements: Iterable[str]) -> list[str]:
    """The packages that a node needs: those of no extra, out of a distribution's requirements."""
    lines = (line for line in requirements if "extra ==" not in line)
    return sorted({normalised(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in lines})


def normalised(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def package_findings(
    needed: Sequence[str], installed: Mapping[str, str], pins: Mapping[str, str]
) -> list[Finding]:
    """A line for every package that is missing or not at its pin, one for all the others.

    installed: name → version of what is there.
    """
    findings = [
        failed(f"package {name}", "not installed", do=f"install it: {SETUP}")
        for name in needed
        if name not in installed
    ]
    others = [
        warning(
            f"package {name}",
            f"{installed[name]}, tested with {pins[name]}",
            do=f"install the tested version: {SETUP}",
        )
        for name in needed
        if name in installed and name in pins and not is_at(installed[name], pins[name])
    ]
    num_well = len(needed) - len(findings) - len(others)
    how = "at the tested versions" if pins else "installed (their pins are not in this install)"
    return [*findings, *others, ok("packages", f"{num_well} of {len(needed)} {how}")]


def is_at(version: str, pin: str) -> bool:
    """Whether a version is the pinned one; a build's own label (+cpu) does not matter."""
    return version.partition("+")[0] == pin.partition("+")[0]


def backend_findings(
    installed: Mapping[str, str], *, host: Host, asked: str, verifier: str, num_cores: int
) -> list[Finding]:
    """What computes here, and which of them would compute a verifier that is not quantised."""
    findings = []
    if "torch" in installed:
        findings.append(ok("backend torch", f"{installed['torch']}, cpu, {num_cores} cores"))
    if "mlx" in installed:
        where = "Metal" if host.is_apple_silicon else "cpu"
        findings.append(ok("backend mlx", f"{installed['mlx']}, {where}"))
    if verifier == "none":
        return findings
    try:
        findings.append(ok("backend", f"{asked} is {choose_backend(asked, host)}"))
    except Refused as refused:
        do = f"install it ({SETUP}), or run this node with --verifier none"
        findings.append(failed("backend", refused.why, do=do))
    return findings


__all__ = [
    "backend_findings",
    "is_at",
    "normalised",
    "package_findings",
    "pins_of",
    "python_finding",
    "required_by",
]
