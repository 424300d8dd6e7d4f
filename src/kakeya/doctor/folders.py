"""What is in a model's folder, looked at as the loader would: a line for each part.

Opens headers, and reads files of the Hugging Face cache once for their hashes; loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kakeya.compute.weight_files import FolderLimits, read_json
from kakeya.config.hub import HubLimits
from kakeya.config.settings import Settings
from kakeya.config.sizes import shown_size
from kakeya.doctor.finding import Finding, failed, ok
from kakeya.drafting.dflash_checkpoint import read_dflash_checkpoint
from kakeya.drafting.dflash_config import read_dflash_config
from kakeya.drafting.ftheta_file import demand_maps_fit, find_maps
from kakeya.embedded.hub_fetch import file_digest
from kakeya.embedded.proposers import DFLASH_KEY
from kakeya.errors import Refused, demand
from kakeya.node.need import demand_rows
from kakeya.verifying.checkpoint import read_checkpoint
from kakeya.verifying.model_config import read_config
from kakeya.verifying.tokenizer import load_tokenizer

REPAIR = "fetch it again: kakeya models pull NAME, or name another"
_BLOB = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")

# What was found in words.  Raises Refused.
Look = Callable[[Path, Settings], str]


def folder_findings(folder: Path, settings: Settings) -> Iterator[Finding]:
    """A verifier's, a drafter's or a proposer's folder, each part as soon as it is known."""
    looks = {"config": demand_computed, **(_DRAFTER if _is_drafter(folder) else _DECODER)}
    if _blobs(folder):
        looks["hashes"] = _hashes
    for check, look in looks.items():
        try:
            yield ok(check, look(folder, settings))
        except Refused as refused:
            yield failed(check, refused.why, do=REPAIR)
        except OSError as error:
            yield failed(check, error.strerror or type(error).__name__, do=REPAIR)


def demand_computed(folder: Path, settings: Settings) -> str:
    """What config.json asks for, in words.  Raises Refused for what is not computed."""
    limits = settings.verifying
    sizes = FolderLimits(max_json_bytes=limits.max_config_bytes, max_shards=limits.max_shards)
    raw = read_json(folder / "config.json", sizes)
    if DFLASH_KEY in raw:
        drafter = read_dflash_config(raw)
        aux = ", ".join(map(str, drafter.aux_layers))
        return f"a DFlash drafter, block {drafter.block_len}, mask id {drafter.mask_id}, aux {aux}"
    config = read_config(raw, {})
    shape = f"{config.num_layers} layers, hidden {config.hidden_size}"
    return f"{config.model_type}, {shape}, context {config.max_context_len}"


def _is_drafter(folder: Path) -> bool:
    try:
        raw = read_json(folder / "config.json", FolderLimits(8 << 20, 1))
    except (Refused, OSError):
        return False
    return DFLASH_KEY in raw


def _decoder_weights(folder: Path, settings: Settings) -> str:
    found = read_checkpoint(folder, settings.verifying)
    kinds = ", ".join(sorted(set(found.dtypes.values())))
    packed = f", {len(found.quantized)} of them quantised" if found.quantized else ""
    return f"{len(found.files)} in {kinds}{packed}, {_on_disk(found.files.values())}"


def _tokenizer(folder: Path, settings: Settings) -> str:
    tokenizer = load_tokenizer(folder)
    demand_rows(tokenizer.vocab_size, read_checkpoint(folder, settings.verifying).config.vocab_size)
    template = "with" if tokenizer.template else "without"
    return f"{tokenizer.vocab_size} ids, {template} chat template"


def _drafter_weights(folder: Path, settings: Settings) -> str:
    found = read_dflash_checkpoint(folder, settings.drafter)
    return f"{len(found.shapes)}, {_on_disk(found.files.values())}"


def _maps(folder: Path, settings: Settings) -> str:
    maps = find_maps(folder)
    if maps is None:
        return "none, Restore has no banks"
    demand_maps_fit(maps, read_dflash_checkpoint(folder, settings.drafter).config)
    return f"for {len(maps.target.layer_types)} layers"


_DECODER: dict[str, Look] = {"weights": _decoder_weights, "tokenizer": _tokenizer}
_DRAFTER: dict[str, Look] = {"weights": _drafter_weights, "f_θ": _maps}


def _on_disk(files: Iterable[Path]) -> str:
    paths = set(files)
    size = sum(path.stat().st_size for path in paths)
    return f"{shown_size(size)} in {len(paths)} file{'s' * (len(paths) > 1)}"


def _blobs(folder: Path) -> list[tuple[str, Path]]:
    """Files whose link says their hash: (name, where it lies)."""
    links = [path for path in sorted(folder.iterdir()) if path.is_symlink()]
    return [(path.name, path.resolve()) for path in links if _BLOB.fullmatch(path.resolve().name)]


def _hashes(folder: Path, settings: Settings) -> str:
    del settings
    found = _blobs(folder)
    for name, blob in found:
        digest = file_digest(blob, len(blob.name), HubLimits().chunk_bytes)
        demand(
            digest == blob.name,
            "DATA_LOSS",
            f"{name} has the hash {digest[:12]}…, it was fetched as {blob.name[:12]}…",
        )
    return f"those of {len(found)} files are right"


__all__ = ["demand_computed", "folder_findings"]
