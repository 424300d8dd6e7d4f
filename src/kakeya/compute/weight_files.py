"""Where the weights of a Hugging Face layout folder lie, and whether their headers fit.

Reads the shard index and the headers of *.safetensors; knows no model and no tensor framework.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from kakeya.compute.config_fields import shortened
from kakeya.errors import Refused, demand

WEIGHT_DTYPES = ("F32", "F16", "BF16")
# What is never opened: such files run code when they are read.
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """max_json_bytes: of one JSON file of the folder."""

    max_json_bytes: int
    max_shards: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says of one weight, before its values are read."""

    shape: tuple[int, ...]
    dtype: str


def read_json(path: Path, limits: FolderLimits) -> Mapping[str, Any]:
    """The object a JSON file holds.

    Raises Refused: NOT_FOUND, RESOURCE_EXHAUSTED (too large), DATA_LOSS (no JSON),
    INVALID_ARGUMENT (no object).
    """
    with readable(path):
        demand(path.is_file(), "NOT_FOUND", f"the folder has no {path.name}")
        size = path.stat().st_size
        demand(
            size <= limits.max_json_bytes,
            "RESOURCE_EXHAUSTED",
            f"{path.name} has {size} bytes, the limit is {limits.max_json_bytes}",
        )
        text = path.read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("DATA_LOSS", f"{path.name} is not JSON") from None
    demand(isinstance(found, dict), "INVALID_ARGUMENT", f"{path.name} must hold an object")
    assert isinstance(found, dict)
    return found


def weight_files(folder: Path, limits: FolderLimits) -> dict[str, Path]:
    """Weight name → safetensors file, from the shard index or the single file.

    Raises Refused: NOT_FOUND, INVALID_ARGUMENT (the index), RESOURCE_EXHAUSTED, DATA_LOSS.
    """
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        single = folder / "model.safetensors"
        demand(single.is_file(), "NOT_FOUND", _without_weights(folder))
        return dict.fromkeys(_names_in(single), single)
    placed = read_json(index_path, limits).get("weight_map")
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


def check_headers(
    wanted: Mapping[str, tuple[int, ...]],
    files: Mapping[str, Path],
    *,
    dtypes: tuple[str, ...] = WEIGHT_DTYPES,
) -> dict[str, str]:
    """The stored dtype of every wanted weight, after names and shapes were found as wanted.

    dtypes: the ones allowed, by the names safetensors has for them.  Raises Refused as
    read_headers and checked_dtype do.
    """
    headers = read_headers(list(wanted), files)
    return {
        name: checked_dtype(name, headers[name], shape, dtypes) for name, shape in wanted.items()
    }


def read_headers(names: Sequence[str], files: Mapping[str, Path]) -> dict[str, Header]:
    """Shape and dtype of every named weight.

    Raises Refused: INVALID_ARGUMENT (missing), DATA_LOSS.
    """
    for name in names:
        demand(name in files, "INVALID_ARGUMENT", f"the weight {name} is missing")
    found: dict[str, Header] = {}
    for path in sorted({files[name] for name in names}):
        with readable(path), safe_open(path, framework="np") as opened:
            held = set(opened.keys())
            for name in [name for name in names if files[name] == path]:
                demand(
                    name in held,
                    "INVALID_ARGUMENT",
                    f"the weight {name} is missing from {path.name}",
                )
                part = opened.get_slice(name)
                found[name] = Header(tuple(part.get_shape()), str(part.get_dtype()))
    return found


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the disk or the file's format refuses in here, as Refused(DATA_LOSS) with its name."""
    try:
        yield
    except SafetensorError as error:
        raise Refused("DATA_LOSS", f"{path.name} is cut or no safetensors: {error}") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Refused("DATA_LOSS", f"{path.name} cannot be read: {why}") from None


def checked_dtype(
    name: str,
    header: Header,
    wanted: tuple[int, ...],
    dtypes: tuple[str, ...] = WEIGHT_DTYPES,
) -> str:
    """The weight's stored dtype.

    Raises Refused: INVALID_ARGUMENT (another shape), UNIMPLEMENTED (a dtype we do not read).
    """
    demand(
        header.shape == wanted,
        "INVALID_ARGUMENT",
        f"the weight {name} has shape {list(header.shape)}, config.json says {list(wanted)}",
    )
    demand(
        header.dtype in dtypes,
        "UNIMPLEMENTED",
        f"the weight {name} has dtype {header.dtype}, supported are {', '.join(dtypes)}",
    )
    return header.dtype


def _names_in(path: Path) -> list[str]:
    with readable(path), safe_open(path, framework="np") as opened:
        return list(opened.keys())


def _without_weights(folder: Path) -> str:
    """What is said of a folder without safetensors."""
    why = "the folder has neither model.safetensors nor model.safetensors.index.json"
    found = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    return f"{why}; {found[0]} is a pickle, which is never read" if found else why
