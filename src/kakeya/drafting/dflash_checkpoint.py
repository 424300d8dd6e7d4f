"""What a folder with a DFlash drafter holds: its shape, and where each weight lies.

Reads config.json and the headers of *.safetensors; knows no tensor framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.compute.config_fields import shortened, whole
from kakeya.compute.weight_files import FolderLimits, check_headers, read_json, weight_files
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_config import DflashConfig, VerifierShape, read_dflash_config
from kakeya.errors import demand

# Tensors that change nothing we compute: the other direction of d2t, and rotary tables.
_UNREAD = re.compile(r"t2d|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
# The verifier's embedding and head go by these names; the longer ones are of models that also
# take images.
_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")
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


@dataclass(frozen=True, slots=True)
class VerifierEndsOnDisk:
    """What a drafter needs of its verifier's folder, by the headers.

    names: of the embedding and of the head, one name where they are the same matrix.
    """

    shape: VerifierShape
    family: str  # its model_type
    names: tuple[str, ...]
    files: Mapping[str, Path]


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


def find_verifier_ends(folder: Path, limits: DrafterLimits) -> VerifierEndsOnDisk:
    """Shape and ends of a verifier, whatever its architecture.

    Raises Refused as the reading of a drafter's folder does.
    """
    raw = read_json(folder / "config.json", folder_limits(limits))
    text = raw["text_config"] if isinstance(raw.get("text_config"), dict) else raw
    shape = VerifierShape(
        vocab_size=whole(text, "vocab_size", 2, 1 << 22),
        hidden_size=whole(text, "hidden_size", 1, 1 << 17),
        num_layers=whole(text, "num_hidden_layers", 1, 1024),
    )
    files = weight_files(folder, folder_limits(limits))
    embedding = next((name for name in _EMBEDDINGS if name in files), _EMBEDDINGS[0])
    head = next((name for name in _HEADS if name in files), None)
    is_tied = text.get("tie_word_embeddings", raw.get("tie_word_embeddings"))
    demand(
        head is not None or is_tied is not False,
        "INVALID_ARGUMENT",
        f"tie_word_embeddings is false, but the weight {_HEADS[0]} is missing",
    )
    names = (embedding,) if head is None or is_tied else (embedding, head)
    check_headers(dict.fromkeys(names, (shape.vocab_size, shape.hidden_size)), files)
    family = text.get("model_type")
    return VerifierEndsOnDisk(shape, family if isinstance(family, str) else "", names, files)


def drafter_bytes(checkpoint: DflashCheckpoint, itemsize: int) -> int:
    """Bytes the weights take in memory, the verifier's embedding and head with them.

    Every layer's k and v count twice, they have a second form for the context.
    """
    c = checkpoint.config
    num_kv = 2 * c.num_layers * c.num_kv_heads * c.head_dim * c.hidden_size
    num_ends = sum(
        c.vocab_size * c.hidden_size
        for name in ("embed_tokens.weight", "lm_head.weight")
        if name not in checkpoint.shapes
    )
    return (checkpoint.num_params + num_kv + num_ends) * itemsize


def weight_shapes(config: DflashConfig, held: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Every weight that is read, by its name in the checkpoint; matrices are [out, in].

    held: the names the checkpoint has; of the weights it may leave to the verifier, those it
    has are read.
    """
    c = config
    h = c.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (h, len(c.aux_layers) * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
    }
    for i in range(c.num_layers):
        shapes |= _layer_shapes(c, f"layers.{i}")
    if c.selector is not None:
        at = "candidate_selector"
        shapes[f"{at}.hidden_projection.weight"] = (c.selector.rank, h)
        for book in ("predecessor_codebook", "successor_codebook"):
            # Published as bare parameters; saved by the reference implementation as embeddings.
            name = f"{at}.{book}.weight" if f"{at}.{book}.weight" in held else f"{at}.{book}"
            shapes[name] = (c.vocab_size, c.selector.rank)
    if "embed_tokens.weight" in held:
        shapes["embed_tokens.weight"] = (c.vocab_size, h)
    if "lm_head.weight" in held or (c.draft_vocab_size and not c.cuts_verifier_head):
        shapes["lm_head.weight"] = (c.draft_vocab_size or c.vocab_size, h)
    return shapes


def _layer_shapes(config: DflashConfig, at: str) -> dict[str, tuple[int, ...]]:
    c = config
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    h, m = c.hidden_size, c.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in (("q", (q, h)), ("k", (kv, h)), ("v", (kv, h)), ("o", (h, q))):
        shapes[f"{at}.self_attn.{name}_proj.weight"] = shape
        if c.has_attention_bias:
            shapes[f"{at}.self_attn.{name}_proj.bias"] = shape[:1]
    shapes[f"{at}.self_attn.q_norm.weight"] = (c.head_dim,)
    shapes[f"{at}.self_attn.k_norm.weight"] = (c.head_dim,)
    shapes[f"{at}.mlp.gate_proj.weight"] = (m, h)
    shapes[f"{at}.mlp.up_proj.weight"] = (m, h)
    shapes[f"{at}.mlp.down_proj.weight"] = (h, m)
    shapes[f"{at}.input_layernorm.weight"] = (h,)
    shapes[f"{at}.post_attention_layernorm.weight"] = (h,)
    if c.convolutions is not None:
        size, num_groups = c.convolutions.kernel_size, h // c.convolutions.group_size
        for part in ("attention_conv", "mlp_conv"):
            shapes[f"{at}.{part}.base_kernel"] = (2, size, h)
            shapes[f"{at}.{part}.kernel_projection.weight"] = (2 * size * num_groups, h)
    return shapes
