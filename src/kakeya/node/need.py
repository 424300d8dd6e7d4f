"""What a node's models need, by the headers of their files: backend, dtype, bytes.

No weight is read here, so all of it can be said before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakeya.compute.config_fields import shortened
from kakeya.config.settings import Settings
from kakeya.config.sizes import shown_size
from kakeya.drafting.dflash_checkpoint import (
    drafter_bytes,
    find_verifier_ends,
    read_dflash_checkpoint,
)
from kakeya.drafting.dflash_config import demand_fits
from kakeya.drafting.ftheta_file import demand_maps_fit, find_maps
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.folder import is_whole
from kakeya.embedded.models import EMBEDDED, SMOLLM2, find_model, models_folder
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.embedded.smollm2 import FOLDER_NAME, installed_gguf
from kakeya.errors import demand
from kakeya.node.backend import Host, choose_backend
from kakeya.verifying.checkpoint import Checkpoint, read_checkpoint, stored_dtype
from kakeya.verifying.exactness import NUM_PROBES, probe_plan
from kakeya.verifying.footprint import ITEM_BYTES, kv_bytes, weight_bytes
from kakeya.verifying.verifier import KvMode, KvPlan


@dataclass(frozen=True, slots=True)
class VerifierNeed:
    """weight_bytes: in `dtype`, as `backend` holds them.  context_bytes: K/V of a whole context
    in the node's own K/V mode.  probe_bytes: K/V open at once while exactness is measured."""

    checkpoint: Checkpoint
    backend: str
    dtype: str
    weight_bytes: int
    context_bytes: int
    probe_bytes: int


def verifier_need(folder: Path, settings: Settings, host: Host) -> VerifierNeed:
    """Raises Refused as read_checkpoint and choose_backend do."""
    limits = settings.verifying
    checkpoint = read_checkpoint(folder, limits)
    backend = choose_backend(settings.backend, host, is_packed=bool(checkpoint.quantized))
    # float32 is the faithful one, and on CPUs mostly the faster one as well; MLX computes in what
    # is stored.
    auto = "float32" if backend == "torch" else stored_dtype(checkpoint)
    dtype = auto if settings.dtype == "auto" else settings.dtype
    num_bytes = weight_bytes(checkpoint, dtype, copies_tied_head=backend == "torch")
    demand(
        num_bytes <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the weights take {num_bytes} bytes in {dtype}, the limit is {limits.max_weight_bytes}",
    )
    config = checkpoint.config
    # Banks of a restored context are no smaller than what a window keeps, and not known before.
    mode: KvMode = "full" if settings.kv == "full" else "window"
    plan = KvPlan(mode, settings.sink, settings.window, config.max_context_len)
    probe_bytes = NUM_PROBES * kv_bytes(config, probe_plan(config), dtype, limits)
    context_bytes = kv_bytes(config, plan, dtype, limits)
    return VerifierNeed(checkpoint, backend, dtype, num_bytes, context_bytes, probe_bytes)


def chosen_dtype(settings: Settings) -> str:
    """What the torch twins compute in where nothing is asked for: the faithful one."""
    return "float32" if settings.dtype == "auto" else settings.dtype


def proposer_bytes(settings: Settings, name: str, env: Mapping[str, str]) -> int:
    """The weights of what one --proposer names, 0 for ngram and for what is still to be made.

    Raises Refused as the reading of its checkpoint does, or where it does not fit its verifier.
    """
    if name == NGRAM:
        return 0
    dtype, by_prefix = chosen_dtype(settings), resolve_by_prefix(name, env)
    if by_prefix is not None:
        if is_unmade(by_prefix.model, env):
            installed_gguf()
            return 0
        read = read_checkpoint(find_model(by_prefix.model, env), settings.verifying)
        return weight_bytes(read, dtype, copies_tied_head=True)
    choice = resolve_drafter(name, own_verifier=settings.verifier, env=env)
    checkpoint = read_dflash_checkpoint(choice.folder, settings.drafter)
    if not is_unmade(choice.verifier, env):
        folder = find_model(choice.verifier, env)
        demand_fits(checkpoint.config, find_verifier_ends(folder, settings.drafter).shape)
    maps = find_maps(choice.folder)
    if maps is not None:
        demand_maps_fit(maps, checkpoint.config)
    return drafter_bytes(checkpoint, ITEM_BYTES[dtype])


def is_unmade(name: str, env: Mapping[str, str]) -> bool:
    """Whether the default model is named and not converted yet."""
    return name in (SMOLLM2, EMBEDDED) and not is_whole(models_folder(env) / FOLDER_NAME)


def demand_memory(settings: Settings, need: VerifierNeed | None, drafting_bytes: int) -> None:
    """Raise Refused(RESOURCE_EXHAUSTED) where memory_limit is less than what must fit.

    Spec: N-23.
    """
    limit = settings.memory_limit
    sizes = {f"weights in {need.dtype}": need.weight_bytes, **_kv_size(need)} if need else {}
    sizes |= {"drafters": drafting_bytes} if drafting_bytes else {}
    total = sum(sizes.values())
    parts = [f"{what} {shown_size(size)}" for what, size in sizes.items()]
    demand(
        not limit or total <= limit,
        "RESOURCE_EXHAUSTED",
        f"memory_limit is {shown_size(limit)} ({limit} bytes), needed are {shown_size(total)} "
        f"({total} bytes): {', '.join(parts)}",
    )


def _kv_size(need: VerifierNeed) -> dict[str, int]:
    """The K/V that must fit, by what it is of."""
    if need.context_bytes >= need.probe_bytes:
        length = need.checkpoint.config.max_context_len
        return {f"K/V of {length} positions": need.context_bytes}
    return {f"K/V of the {NUM_PROBES} probes that measure exactness": need.probe_bytes}


def demand_rows(num_ids: int, num_rows: int) -> None:
    """Raise Refused(INVALID_ARGUMENT) for a tokenizer with ids that the embedding has no row of.

    More rows than ids are padding.  Spec: V-20.
    """
    demand(
        num_ids <= num_rows,
        "INVALID_ARGUMENT",
        f"tokenizer.json has {shortened(num_ids)} ids, vocab_size is {num_rows}",
    )
