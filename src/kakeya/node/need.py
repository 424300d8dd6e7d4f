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
from kakeya.drafting.dflash_checkpoint import drafter_bytes, read_dflash_checkpoint
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import resolve_drafter
from kakeya.errors import demand
from kakeya.node.backend import Host, choose_backend
from kakeya.verifying.checkpoint import Checkpoint, read_checkpoint, stored_dtype
from kakeya.verifying.footprint import ITEM_BYTES, kv_bytes, weight_bytes
from kakeya.verifying.verifier import KvMode, KvPlan


@dataclass(frozen=True, slots=True)
class VerifierNeed:
    """weight_bytes: in `dtype`, as `backend` holds them.  context_bytes: K/V of a whole context
    in the node's own K/V mode."""

    checkpoint: Checkpoint
    backend: str
    dtype: str
    weight_bytes: int
    context_bytes: int


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
    return VerifierNeed(
        checkpoint, backend, dtype, num_bytes, kv_bytes(config, plan, dtype, limits)
    )


def drafter_dtype(settings: Settings) -> str:
    """What drafters compute in: as the torch verifier does where nothing is asked for."""
    return "float32" if settings.dtype == "auto" else settings.dtype


def drafters_bytes(settings: Settings, env: Mapping[str, str]) -> int:
    """The weights of all drafters the node is to serve.  Raises Refused."""
    itemsize = ITEM_BYTES[drafter_dtype(settings)]
    names = [name for name in settings.proposer if name != NGRAM]
    folders = [resolve_drafter(n, own_verifier=settings.verifier, env=env).folder for n in names]
    read = [read_dflash_checkpoint(folder, settings.drafter) for folder in folders]
    return sum(drafter_bytes(each, itemsize) for each in read)


def demand_memory(settings: Settings, need: VerifierNeed | None, drafting_bytes: int) -> None:
    """Raise Refused(RESOURCE_EXHAUSTED) where memory_limit is less than what must fit."""
    limit = settings.memory_limit
    weights = need.weight_bytes if need else 0
    context = need.context_bytes if need else 0
    total = weights + context + drafting_bytes
    parts = []
    if need:
        length = need.checkpoint.config.max_context_len
        parts += [
            f"weights {shown_size(weights)} in {need.dtype}",
            f"K/V of {length} positions {shown_size(context)}",
        ]
    if drafting_bytes:
        parts.append(f"drafters {shown_size(drafting_bytes)}")
    demand(
        not limit or total <= limit,
        "RESOURCE_EXHAUSTED",
        f"memory_limit is {shown_size(limit)} ({limit} bytes), needed are {shown_size(total)}: "
        f"{', '.join(parts)}",
    )


def demand_rows(num_ids: int, num_rows: int) -> None:
    """Raise Refused(INVALID_ARGUMENT) for a tokenizer with ids that the embedding has no row of.

    More rows than ids are padding.  Spec: V-20.
    """
    demand(
        num_ids <= num_rows,
        "INVALID_ARGUMENT",
        f"tokenizer.json has {shortened(num_ids)} ids, vocab_size is {num_rows}",
    )
