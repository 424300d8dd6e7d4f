"""The file that holds an f_θ beside its drafter: what it leads to, and whether it fits.

Reads the header only; knows no tensor framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import safe_open

from kakeya.compute.weight_files import WEIGHT_DTYPES, Header, readable
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.errors import Refused, demand

FILE = "ftheta.safetensors"
# Name of a matrix → how many times the drafter's features it takes: the prompt's, and with
# `seeded` the context's besides.
MATRICES = {"alone": 1, "seeded": 2}


class Target(msgspec.Struct, frozen=True):
    """The verifier the maps lead to, as the file's header tells."""

    layer_types: tuple[str, ...]
    sliding_window: int | None
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class MapsOnDisk:
    path: Path
    target: Target
    headers: Mapping[str, Header]


def find_maps(folder: Path) -> MapsOnDisk | None:
    """The f_θ that lies beside a drafter, by its header; None without one.

    Raises Refused(DATA_LOSS, INVALID_ARGUMENT) for a file that is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    with readable(path), safe_open(path, framework="np") as opened:
        said = (opened.metadata() or {}).get("target", "")
        held = set(opened.keys())
        for name in MATRICES:
            demand(name in held, "INVALID_ARGUMENT", f"the weight {name} is missing from {FILE}")
        parts = {name: opened.get_slice(name) for name in MATRICES}
        headers = {
            name: Header(tuple(part.get_shape()), str(part.get_dtype()))
            for name, part in parts.items()
        }
    try:
        target = msgspec.json.decode(said, type=Target)
    except msgspec.DecodeError as error:
        raise Refused("DATA_LOSS", f"{FILE} cannot be read: {error}") from None
    return MapsOnDisk(path, target, headers)


def demand_maps_fit(maps: MapsOnDisk, config: DflashConfig) -> None:
    """Raise Refused(INVALID_ARGUMENT) for matrices of another shape than target and drafter say."""
    target = maps.target
    num_rows = len(target.layer_types) * 2 * target.num_kv_heads * target.head_dim
    num_features = config.num_layers * 2 * config.num_kv_heads * config.head_dim
    for name, times in MATRICES.items():
        header, wanted = maps.headers[name], (num_rows, times * num_features + 1)
        demand(
            header.shape == wanted,
            "INVALID_ARGUMENT",
            f"{name} of {FILE} has shape {list(header.shape)}, "
            f"its header and the drafter say {list(wanted)}",
        )
        demand(
            header.dtype in WEIGHT_DTYPES,
            "UNIMPLEMENTED",
            f"{name} of {FILE} has dtype {header.dtype}, supported are {', '.join(WEIGHT_DTYPES)}",
        )


__all__ = ["FILE", "MATRICES", "MapsOnDisk", "Target", "demand_maps_fit", "find_maps"]
