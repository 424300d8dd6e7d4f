"""What this host is: its packages, its interfaces, its cores.  Reads, and decides nothing."""

from __future__ import annotations

import sys
from importlib.metadata import distributions, requires
from pathlib import Path

import psutil

from kakeya.compute.threads import usable_cores
from kakeya.config.settings import Settings
from kakeya.doctor.finding import Finding
from kakeya.doctor.packages import (
    backend_findings,
    normalised,
    package_findings,
    pins_of,
    python_finding,
    required_by,
)
from kakeya.node.backend import this_host

# Where a checkout keeps the versions it was tested with; an installed wheel has none.
CONSTRAINTS = Path(__file__).resolve().parents[3] / ".ci" / "constraints.txt"
# What no node needs, but whose version matters where it is there.
EXTRAS = ("torch", "mlx")


def host_findings(settings: Settings) -> list[Finding]:
    """Python, packages, backends."""
    installed = {
        normalised(each.metadata["Name"]): each.version
        for each in distributions()
        if each.metadata["Name"]
    }
    pins = pins_of(CONSTRAINTS.read_text()) if CONSTRAINTS.is_file() else {}
    needed = required_by(requires("kakeya") or ())
    needed += [name for name in EXTRAS if name in installed]
    return [
        python_finding(sys.version_info[:3]),
        *package_findings(needed, installed, pins),
        *backend_findings(
            installed,
            host=this_host(),
            asked=settings.backend,
            verifier=settings.verifier,
            num_cores=usable_cores(),
        ),
    ]


def interfaces() -> dict[str, list[str]]:
    """Name → its addresses in numbers, of both families."""
    return {
        name: [
            str(each.address) for each in addresses if each.family.name in ("AF_INET", "AF_INET6")
        ]
        for name, addresses in psutil.net_if_addrs().items()
    }


__all__ = ["host_findings", "interfaces"]
