"""Which tensor framework computes the verifier: a plain decision, from what this host has."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from kakeya.errors import demand

BACKENDS = ("torch", "mlx")
# What must be importable for each.
_MODULES = {"torch": "torch", "mlx": "mlx.core"}


@dataclass(frozen=True, slots=True)
class Host:
    """What decides.  importable: backends whose package is installed here."""

    importable: frozenset[str]
    is_apple_silicon: bool


def this_host() -> Host:
    found = frozenset(name for name in BACKENDS if _is_importable(_MODULES[name]))
    is_apple_silicon = sys.platform == "darwin" and platform.machine() == "arm64"
    return Host(found, is_apple_silicon)


def choose_backend(asked: str, host: Host, *, is_packed: bool = False) -> str:
    """torch or mlx.  asked: auto, torch or mlx; is_packed: the weights are quantised in MLX's way.

    auto is mlx on Apple silicon and for packed weights, else torch; the other one where that is
    not installed.  Raises Refused(FAILED_PRECONDITION).  Spec: N-21.
    """
    if asked == "auto":
        wants_mlx = is_packed or host.is_apple_silicon
        order = ("mlx", "torch") if wants_mlx else ("torch", "mlx")
        asked = next((each for each in order if each in host.importable), order[0])
    demand(
        asked in host.importable,
        "FAILED_PRECONDITION",
        f"backend {asked} is not installed here: pip install 'kakeya[{asked}]'",
    )
    demand(
        asked == "mlx" or not is_packed,
        "FAILED_PRECONDITION",
        f"backend {asked} does not compute weights in MLX's quantised layout, mlx does",
    )
    return asked


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
