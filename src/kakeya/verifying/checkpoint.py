"""What a Hugging Face layout folder holds: the model's shape, and where each weight lies.

Reads config.json, generation_config.json and the headers of model*.safetensors.  Knows no tensor
framework: the weights themselves are read by the twins, after every shape here was checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.config_fields import shortened
from kakeya.verifying.model_config import ModelConfig, read_config
from kakeya.verifying.weight_names import stored_prefix, weight_shapes

WEIGHT_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose config and weight headers agree.

    Names of weights are weight_shapes's.  files: name → file.  stored: name → name in that file.
    """

    config: ModelConfig
    files: Mapping[str, Path]
    dtypes: Mapping[str, str]
    stored: Mapping[str, str]


def read_checkpoint(folder: Path, limits: VerifyingLimits) -> Checkpoint:
    """Read and check everything but the weights' values.

    Raises Refused: NOT_FOUND (a file is missing), UNIMPLEMENTED (an architecture or option we do
    not compute), INVALID_ARGUMENT (a field or shape that contradicts itself), DATA_LOSS (a file
    that is cut or is no safetensors), RESOURCE_EXHAUSTED (larger than the limits).
    """
    raw = _read_json(folder / "config.json", limits)
    generation: Mapping[str, Any] = {}
    if (folder / "generation_config.json").is_file():
        generation = _read_json(folder / "generation_config.json", limits)
    config = read_config(raw, generation)
    num_params = sum(_size(shape) for shape in weight_shapes(config).values())
    demand(
        2 * num_params <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the model has {num_params} parameters, the limit is {limits.max_weight_bytes} bytes",
    )
    found = _weight_files(folder, limits)
    prefix = stored_prefix(found)
    stored = {name: name.replace("model.", prefix, 1) for name in weight_shapes(config)}
    for name in stored.values():
        demand(name in found, "INVALID_ARGUMENT", f"the weight {name} is missing")
    files = {name: found[stored[name]] for name in stored}
    return Checkpoint(config, files, _check_headers(config, files, stored), stored)


def _weight_files(folder: Path, limits: VerifyingLimits) -> dict[str, Path]:
    """Weight name → safetensors file, from the shard index or the single file."""
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        single = folder / "model.safetensors"
        demand(
            single.is_file(),
            "NOT_FOUND",
            "the folder has neither model.safetensors nor model.safetensors.index.json",
        )
        return dict.fromkeys(_names_in(single), single)
    placed = _read_json(index_path, limits).get("weight_map")
    demand(isinstance(placed, dict), "INVALID_ARGUMENT", "the shard index has no weight_map")
    assert isinstance(placed, dict)
    shards = set(map(str, placed.values()))
    demand(
        len(shards) <= limits.max_shards,
        "RESOURCE_EXHAUSTED",
        f"weight_map names {len(shards)} files, the limit is {limits.max_shards}",
    )
    for shard in sorted(shards):
        # A name with a directory in it could lead out of the folder.
        demand(
            Path(shard).name == shard and shard.endswith(".safetensors"),
            "INVALID_ARGUMENT",
            f"weight_map names {shortened(shard)}, it must be a .safetensors file of the folder",
        )
        demand((folder / shard).is_file(), "NOT_FOUND", f"the shard {shortened(shard)} is missing")
    return {str(name): folder / str(shard) for name, shard in placed.items()}


def _names_in(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="np") as opened:
            return list(opened.keys())
    except SafetensorError as error:
        raise Refused("DATA_LOSS", f"{path.name} is cut or no safetensors: {error}") from None


def _check_headers(
    config: ModelConfig, files: Mapping[str, Path], stored: Mapping[str, str]
) -> dict[str, str]:
    """The stored dtype of every weight, after names and shapes were found as the config says."""
    wanted = weight_shapes(config)
    dtypes: dict[str, str] = {}
    for path in sorted(set(files.values())):
        names = [name for name in wanted if files[name] == path]
        try:
            with safe_open(path, framework="np") as opened:
                held = set(opened.keys())
                for name in names:
                    demand(
                        stored[name] in held,
                        "INVALID_ARGUMENT",
                        f"the weight {stored[name]} is missing from {path.name}",
                    )
                    part = opened.get_slice(stored[name])
                    dtypes[name] = _checked_dtype(
                        stored[name], tuple(part.get_shape()), str(part.get_dtype()), wanted[name]
                    )
        except SafetensorError as error:
            raise Refused("DATA_LOSS", f"{path.name} is cut or no safetensors: {error}") from None
    return dtypes


def _checked_dtype(name: str, shape: tuple[int, ...], dtype: str, wanted: tuple[int, ...]) -> str:
    demand(
        shape == wanted,
        "INVALID_ARGUMENT",
        f"the weight {name} has shape {list(shape)}, config.json says {list(wanted)}",
    )
    demand(
        dtype in WEIGHT_DTYPES,
        "UNIMPLEMENTED",
        f"the weight {name} has dtype {dtype}, supported are {', '.join(WEIGHT_DTYPES)}",
    )
    return dtype


def _read_json(path: Path, limits: VerifyingLimits) -> Mapping[str, Any]:
    demand(path.is_file(), "NOT_FOUND", f"the folder has no {path.name}")
    size = path.stat().st_size
    demand(
        size <= limits.max_config_bytes,
        "RESOURCE_EXHAUSTED",
        f"{path.name} has {size} bytes, the limit is {limits.max_config_bytes}",
    )
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise Refused("DATA_LOSS", f"{path.name} is not JSON") from None
    demand(isinstance(found, dict), "INVALID_ARGUMENT", f"{path.name} must hold an object")
    assert isinstance(found, dict)
    return found


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for each in shape:
        count *= each
    return count
