"""What a Hugging Face layout folder holds: the model's shape, and where each weight lies.

Reads config.json, generation_config.json and the headers of model*.safetensors.  Knows no tensor
framework: the weights themselves are read by the twins, after every shape here was checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kakeya.compute.quantized import Quantized
from kakeya.compute.weight_files import (
    FolderLimits,
    Header,
    checked_dtype,
    read_headers,
    read_json,
    weight_files,
)
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import demand
from kakeya.verifying.model_config import ModelConfig, read_config
from kakeya.verifying.weight_names import (
    QUANTIZED_BITS,
    packing,
    part_name,
    stored_prefix,
    weight_shapes,
)

# The names of safetensors' dtypes that an engine computes in.
_ENGINE_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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
    sizes = FolderLimits(max_json_bytes=limits.max_config_bytes, max_shards=limits.max_shards)
    raw = read_json(folder / "config.json", sizes)
    generation: Mapping[str, Any] = {}
    if (folder / "generation_config.json").is_file():
        generation = read_json(folder / "generation_config.json", sizes)
    config = read_config(raw, generation)
    # Before any file of weights is opened: a config may promise what nobody stored.
    least_bits = 16 if raw.get("quantization") is None else min(QUANTIZED_BITS)
    num_params = sum(_size(shape) for shape in weight_shapes(config).values())
    demand(
        num_params * least_bits // 8 <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the model has {num_params} parameters, the limit is {limits.max_weight_bytes} bytes",
    )
    found = weight_files(folder, sizes)
    prefix = stored_prefix(found)
    stored = {name: name.replace("model.", prefix, 1) for name in weight_shapes(config)}
    headers = read_headers(_with_parts(stored.values(), found), found)
    dtypes, quantized = _check_headers(config, stored, headers)
    files = {name: found[stored[name]] for name in stored}
    return Checkpoint(config, files, dtypes, stored, quantized)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The engine's dtype that most weights of a checkpoint are stored in."""
    return _ENGINE_DTYPES[Counter(checkpoint.dtypes.values()).most_common(1)[0][0]]


def _with_parts(names: Iterable[str], found: Mapping[str, Path]) -> list[str]:
    """The names, and those of a quantised weight's parts where it has them."""
    parts = [part_name(name, part) for name in names for part in ("scales", "biases")]
    return [*names, *(part for part in parts if part in found)]


def _check_headers(
    config: ModelConfig, stored: Mapping[str, str], headers: Mapping[str, Header]
) -> tuple[dict[str, str], dict[str, Quantized]]:
    """The dtype of every weight, and how the quantised ones are packed."""
    dtypes, quantized = {}, {}
    for name, wanted in weight_shapes(config).items():
        header = headers[stored[name]]
        scales, biases = (part_name(stored[name], part) for part in ("scales", "biases"))
        if scales not in headers:
            dtypes[name] = checked_dtype(stored[name], header, wanted)
            continue
        demand(biases in headers, "UNIMPLEMENTED", f"the weight {biases} is missing")
        demand(
            header.dtype == "U32",
            "UNIMPLEMENTED",
            f"the weight {stored[name]} has scales and dtype {header.dtype}, supported is U32",
        )
        of_scales = headers[scales]
        quantized[name] = packing(stored[name], wanted, header.shape, of_scales.shape)
        dtypes[name] = checked_dtype(scales, of_scales, of_scales.shape)
        checked_dtype(biases, headers[biases], of_scales.shape)
    return dtypes, quantized


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for each in shape:
        count *= each
    return count
