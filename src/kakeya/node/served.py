"""The verifier a node serves: from its name to something that decodes.

Runs on the engine's own thread and takes seconds to minutes; knows no nursery.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kakeya.config.settings import Settings
from kakeya.config.verifying import VerifyingLimits
from kakeya.embedded.models import name_of, resolve_model
from kakeya.node.backend import this_host
from kakeya.node.need import (
    VerifierNeed,
    demand_memory,
    demand_rows,
    proposer_bytes,
    verifier_need,
)
from kakeya.verifying.tokenizer import Tokenizer, load_tokenizer
from kakeya.verifying.verifier import Verifier


@dataclass(frozen=True, slots=True)
class ServedModel:
    verifier: Verifier
    tokenizer: Tokenizer
    tokenizer_sha256: str = ""
    backend: str = ""
    family: str = ""


def model_id_of(verifier: str) -> str:
    """The name a verifier goes by: a known model's own, a folder's last part, "" for none."""
    return "" if verifier == "none" else name_of(verifier)


def load_served(settings: Settings, progress: Callable[[str, float], None]) -> ServedModel:
    """Load what `settings.verifier` names; progress gets what is being done and the share done.

    Raises Refused for a model that is missing, damaged or not supported.
    """
    folder = resolve_model(settings.verifier, os.environ, progress)
    need = verifier_need(folder, settings, this_host())
    tokenizer = load_tokenizer(folder)
    demand_rows(tokenizer.vocab_size, need.checkpoint.config.vocab_size)
    verifier = _loader(need.backend)(
        folder,
        dtype=need.dtype,
        limits=_limits(settings, need),
        model_id=model_id_of(settings.verifier),
        progress=lambda share: progress("loading weights", share),
    )
    return ServedModel(
        verifier,
        tokenizer,
        tokenizer_sha256(folder),
        need.backend,
        need.checkpoint.config.model_type,
    )


def _limits(settings: Settings, need: VerifierNeed) -> VerifyingLimits:
    """K/V may take what the weights leave of the memory limit.  Raises Refused for too little."""
    if not settings.memory_limit:
        return settings.verifying
    drafting = sum(proposer_bytes(settings, each, os.environ) for each in settings.proposer)
    demand_memory(settings, need, drafting)
    left = settings.memory_limit - need.weight_bytes - drafting
    return replace(settings.verifying, max_kv_bytes=left)


def _loader(backend: str) -> Callable[..., Verifier]:
    """The chosen twin: a node without a verifier needs no tensor library, and starts without."""
    if backend == "mlx":
        from kakeya.verifying.load_mlx import load_verifier as load_mlx

        return load_mlx
    from kakeya.verifying.load import load_verifier

    return load_verifier


def tokenizer_sha256(folder: Path) -> str:
    """The hash of the folder's tokenizer.json; "" without one."""
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
