"""What a Hugging Face layout folder holds: the model's shape, and where each weight lies.

Reads config.json, generation_config.json and the headers of model*.safetensors.  Knows no tensor
framework: the weights themselves are read by the twins, after every shape here was checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kakeya.compute.weight_files import FolderLimits, check_headers, read_json, weight_files
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import demand
from kakeya.verifying.model_config import ModelConfig, read_config
from kakeya.verifying.weight_names import stored_prefix, weight_shapes


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
    sizes = FolderLimits(max_json_bytes=limits.max_config_bytes, max_shards=limits.max_shards)
    raw = read_json(folder / "config.json", sizes)
    generation: Mapping[str, Any] = {}
    if (folder / "generation_config.json").is_file():
        generation = read_json(folder / "generation_config.json", sizes)
    config = read_config(raw, generation)
    num_params = sum(_size(shape) for shape in weight_shapes(config).values())
    demand(
        2 * num_params <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the model has {num_params} parameters, the limit is {limits.max_weight_bytes} bytes",
    )
    found = weight_files(folder, sizes)
    prefix, shapes = stored_prefix(found), weight_shapes(config)
    stored = {name: name.replace("model.", prefix, 1) for name in shapes}
    dtypes = check_headers({stored[name]: shape for name, shape in shapes.items()}, found)
    return Checkpoint(
        config=config,
        files={name: found[stored[name]] for name in stored},
        dtypes={name: dtypes[stored[name]] for name in stored},
        stored=stored,
    )


def _size(shape: tuple[int, ...]) -> int:
    count = 1
    for each in shape:
        count *= each
    return count
