"""What a folder with a DFlash drafter holds: its shape, and where each weight lies.

Reads config.json and the headers of *.safetensors; knows no tensor framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.compute.config_fields import shortened
from kakeya.compute.weight_files import FolderLimits, check_headers, read_json, weight_files
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_config import DflashConfig, read_dflash_config, weight_shapes
from kakeya.errors import demand

# Tensors that change nothing we compute: the other direction of d2t, and rotary tables.
_UNREAD = re.compile(r"t2d|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
# id of a draft row → how far the verifier's id is above it; present with draft_vocab_size only.
ID_MAP = "d2t"


@dataclass(frozen=True, slots=True)
class DflashCheckpoint:
    """A folder whose config and weight headers agree.  `files` maps weight name → file.

    shapes: the weights to be read, d2t among them where there is one.
    """

    config: DflashConfig
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def has_own_ends(self) -> bool:
        """Whether it brings embedding and head, so that it needs none of the verifier's."""
        return {"embed_tokens.weight", "lm_head.weight"} <= set(self.shapes)

    @property
    def num_params(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())


def folder_limits(limits: DrafterLimits) -> FolderLimits:
    return FolderLimits(max_json_bytes=limits.max_config_bytes, max_shards=limits.max_shards)


def read_dflash_checkpoint(folder: Path, limits: DrafterLimits) -> DflashCheckpoint:
    """Read and check everything but the weights' values.

    Raises Refused: NOT_FOUND (a file is missing), UNIMPLEMENTED (something we do not compute: a
    field, or a weight nobody would read), INVALID_ARGUMENT (a field or shape that contradicts
    itself), DATA_LOSS (a cut file), RESOURCE_EXHAUSTED (larger than the limits).
    """
    config = read_dflash_config(read_json(folder / "config.json", folder_limits(limits)))
    files = weight_files(folder, folder_limits(limits))
    shapes = weight_shapes(config, files)
    check_headers(shapes, files)
    if config.draft_vocab_size is not None:
        demand(
            ID_MAP in files,
            "INVALID_ARGUMENT",
            f"draft_vocab_size is {config.draft_vocab_size}, but the weight {ID_MAP} is missing",
        )
        check_headers({ID_MAP: (config.draft_vocab_size,)}, files, dtypes=("I64", "I32"))
        shapes[ID_MAP] = (config.draft_vocab_size,)
    for name in files:
        demand(
            name in shapes or _UNREAD.fullmatch(name) is not None,
            "UNIMPLEMENTED",
            f"the weight {shortened(name)} is none that this drafter computes with",
        )
    return DflashCheckpoint(config, files, shapes)
