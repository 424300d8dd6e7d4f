"""The file that holds an f_θ beside its drafter, by its header: whether it fits.

Reads no value; knows no tensor framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from kakeya.compute.weight_files import Header, checked_dtype, readable
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.ftheta import FILE, Target, num_rows, read_target
from kakeya.errors import demand

# Name of a map → how many times the drafter's features it takes: the prompt's, and with `seeded`
# the context's besides.
MAPS = {"alone": 1, "seeded": 2}


@dataclass(frozen=True, slots=True)
class MapsOnDisk:
    target: Target
    headers: Mapping[str, Header]


def find_maps(folder: Path) -> MapsOnDisk | None:
    """The f_θ that lies beside a drafter, by its header; None without one.

    Raises Refused(DATA_LOSS, INVALID_ARGUMENT) for a file that is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    headers = {}
    with readable(path), safe_open(path, framework="np") as opened:
        held = set(opened.keys())
        for name in MAPS:
            demand(name in held, "INVALID_ARGUMENT", f"the weight {name} is missing from {FILE}")
            part = opened.get_slice(name)
            headers[name] = Header(tuple(part.get_shape()), str(part.get_dtype()))
        said = opened.metadata()
    target = read_target(said, {name: num_rows(each.shape) for name, each in headers.items()})
    return MapsOnDisk(target, headers)


def demand_maps_fit(maps: MapsOnDisk, config: DflashConfig) -> None:
    """Raise Refused for maps that do not take the features of this drafter.  Spec: M-12."""
    num_features = config.num_layers * 2 * config.num_kv_heads * config.head_dim
    for name, times in MAPS.items():
        rows, *_ = maps.headers[name].shape
        checked_dtype(f"{name} of {FILE}", maps.headers[name], (rows, times * num_features + 1))


__all__ = ["MapsOnDisk", "demand_maps_fit", "find_maps"]
