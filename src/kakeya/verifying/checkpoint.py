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
from kakeya.verifying.weight_names import (
    QUANTIZED_BITS,
    Quantized,
    packing,
    part_name,
    stored_prefix,
    weight_shapes,
)

WEIGHT_DTYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose config and weight headers agree.

    Names of weights are weight_shapes's.  files: name → file.  stored: name → name in that file.
    quantized: the matrices in MLX's quantised layout.
    """

    config: ModelConfig
    files: Mapping[str, Path]
    dtypes: Mapping[str, str]
    stored: Mapping[str, str]
    quantized: Mapping[str, Quantized]


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
    # Before any file of weights is opened: a config may promise what nobody stored.
    least_bits = 16 if raw.get("quantization") is None else min(QUANTIZED_BITS)
    num_params = sum(_size(shape) for shape in weight_shapes(config).values())
    demand(
        num_params * least_bits // 8 <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the model has {num_params} parameters, the limit is {limits.max_weight_bytes} bytes",
    )
    found = _weight_files(folder, limits)
    prefix = stored_prefix(found)
    stored = {name: name.replace("model.", prefix, 1) for name in weight_shapes(config)}
    for name in stored.values():
        demand(name in found, "INVALID_ARGUMENT", f"the weight {name} is missing")
    headers = _read_headers(found, stored)
    dtypes, quantized = _check_headers(config, stored, headers)
    files = {name: found[stored[name]] for name in stored}
    return Checkpoint(config, files, dtypes, stored, quantized)


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


def _read_headers(
    found: Mapping[str, Path], stored: Mapping[str, str]
) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every weight wanted and of a quantised one's parts, by stored name."""
    names = set(stored.values())
    for name in stored.values():
        names |= {part_name(name, part) for part in ("scales", "biases")} & set(found)
    headers = {}
    for path in sorted({found[name] for name in names}):
        try:
            with safe_open(path, framework="np") as opened:
                held = set(opened.keys())
                for name in sorted(name for name in names if found[name] == path):
                    demand(
                        name in held,
                        "INVALID_ARGUMENT",
                        f"the weight {name} is missing from {path.name}",
                    )
                    part = opened.get_slice(name)
                    headers[name] = tuple(part.get_shape()), str(part.get_dtype())
        except SafetensorError as error:
            raise Refused("DATA_LOSS", f"{path.name} is cut or no safetensors: {error}") from None
    return headers


def _check_headers(
    config: ModelConfig,
    stored: Mapping[str, str],
    headers: Mapping[str, tuple[tuple[int, ...], str]],
) -> tuple[dict[str, str], dict[str, Quantized]]:
    """The dtype of every weight, and how the quantised ones are packed."""
    dtypes, quantized = {}, {}
    for name, wanted in weight_shapes(config).items():
        shape, dtype = headers[stored[name]]
        scales = part_name(stored[name], "scales")
        if scales not in headers:
            dtypes[name] = _checked_dtype(stored[name], shape, dtype, wanted)
            continue
        biases = part_name(stored[name], "biases")
        demand(biases in headers, "UNIMPLEMENTED", f"the weight {biases} is missing")
        demand(
            dtype == "U32",
            "UNIMPLEMENTED",
            f"the weight {stored[name]} has scales and dtype {dtype}, supported is U32",
        )
        quantized[name] = packing(stored[name], wanted, shape, headers[scales][0])
        dtypes[name] = _checked_dtype(scales, *headers[scales], headers[scales][0])
        _checked_dtype(biases, *headers[biases], headers[scales][0])
    return dtypes, quantized


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
