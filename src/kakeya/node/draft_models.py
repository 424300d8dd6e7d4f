"""The models that draft by prefix: a checkpoint as a proposer, and what peers are told of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kakeya.config.settings import Settings
from kakeya.drafting.autoregressive import AutoregressiveProposer
from kakeya.drafting.diffusion import DiffusionProposer, Masking
from kakeya.drafting.draft_model import DraftKv
from kakeya.drafting.proposer import JobByJob
from kakeya.drafting.proposer_card import ProposerCard
from kakeya.embedded.models import resolve_model
from kakeya.embedded.proposers import DIFFUSION_KEY, PrefixChoice, read_config
from kakeya.errors import Refused, demand
from kakeya.node.need import chosen_dtype
from kakeya.node.served import tokenizer_sha256
from kakeya.verifying.activations import peak_activation_bytes
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.verifier import Kv, KvPlan, Verifier

Progress = Callable[[str, float], None]
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# A block of the tiny dLM (7 masks) in one step: more steps accept more and cost a pass each.
DIFFUSION_STEPS = 1


class TwinModel(Verifier, Protocol):
    """A twin of the verifier, as far as drafting needs more than the `Verifier` has."""

    @property
    def config(self) -> ModelConfig: ...
    def kv_bytes(self, plan: KvPlan) -> int: ...
    def denoise(self, kv: Kv, ids: Sequence[int]) -> NDArray[np.float32]: ...


class TwinDraftModel:
    """The `DraftModel` over a twin of the verifier, torch or MLX."""

    def __init__(self, twin: TwinModel) -> None:
        self._twin = twin
        self.model_id = twin.model_id
        self.vocab_size = twin.geometry.vocab_size
        self.max_context_len = twin.geometry.max_context_len
        self.piece_len = twin.prefill_chunk_len

    def kv_bytes(self, max_len: int) -> int:
        return self._twin.kv_bytes(_plan(max_len))

    def open(self, max_len: int) -> DraftKv:
        kv: Any = self._twin.open(_plan(max_len))
        found: DraftKv = kv
        return found

    def read(self, kv: DraftKv, ids: Sequence[int]) -> None:
        self._twin.prefill(_of_twin(kv), ids)

    def next_id(self, kv: DraftKv, ids: Sequence[int]) -> int:
        return self._twin.forward(_of_twin(kv), ids).ids[-1]

    def denoise(self, kv: DraftKv, ids: Sequence[int]) -> NDArray[np.float32]:
        return self._twin.denoise(_of_twin(kv), ids)

    def trim(self, kv: DraftKv, length: int) -> None:
        self._twin.trim(_of_twin(kv), length)

    def activation_bytes(self, num_rows: int, num_positions: int) -> int:
        return peak_activation_bytes(
            self._twin.config,
            num_rows=num_rows,
            num_positions=num_positions,
            itemsize=ITEM_BYTES[self._twin.dtype],
        )


@dataclass(frozen=True, slots=True)
class LoadedProposer:
    proposer: JobByJob
    card: ProposerCard
    dtype: str


def load_proposer(settings: Settings, choice: PrefixChoice, progress: Progress) -> LoadedProposer:
    """Load a model that drafts by prefix.  Runs on the engine's own thread.

    Raises Refused for a checkpoint that is missing, damaged or not supported.
    """
    # The chosen twin: a node without models needs no tensor library, and starts without one.
    from kakeya.verifying.load import load_verifier

    folder = resolve_model(choice.model, os.environ, progress)
    limits = settings.drafting
    dtype = chosen_dtype(settings)
    masking = masking_of(folder)
    twin = load_verifier(
        folder,
        dtype=dtype,
        limits=replace(settings.verifying, max_kv_bytes=limits.max_cache_bytes),
        model_id=choice.model_id,
        progress=lambda share: progress("loading a proposer", share),
    )
    model = TwinDraftModel(twin)
    if masking is None:
        proposer: JobByJob = AutoregressiveProposer(model, limits)
    else:
        demand_masking(masking, model.vocab_size)
        proposer = DiffusionProposer(model, masking, limits)
    card = ProposerCard(
        model_id=choice.model_id,
        vocab_size=model.vocab_size,
        tokenizer_sha256=tokenizer_sha256(folder),
        max_context_len=model.max_context_len,
        max_num_drafts=limits.max_num_drafts,
        num_steps=1 if masking is None else DIFFUSION_STEPS,
    )
    return LoadedProposer(proposer, card, dtype)


def masking_of(folder: Path) -> Masking | None:
    """What makes the checkpoint a masked-diffusion model; None for a plain decoder.

    Raises Refused(INVALID_ARGUMENT) for a masked_diffusion that is not two whole numbers.
    """
    config = read_config(folder)
    if DIFFUSION_KEY not in config:
        return None
    raw = config[DIFFUSION_KEY]
    fields = raw if isinstance(raw, dict) else {}
    mask_id, block_len = fields.get("mask_token_id"), fields.get("block_len")
    if not (isinstance(mask_id, int) and isinstance(block_len, int)):
        raise Refused(
            "INVALID_ARGUMENT", f"{DIFFUSION_KEY} needs whole numbers mask_token_id and block_len"
        )
    return Masking(mask_id, block_len)


def demand_masking(masking: Masking, vocab_size: int) -> None:
    demand(
        0 <= masking.mask_id < vocab_size,
        "INVALID_ARGUMENT",
        f"mask_token_id is {masking.mask_id}, the vocabulary is 0 to {vocab_size - 1}",
    )
    demand(
        2 <= masking.block_len <= 64,
        "INVALID_ARGUMENT",
        f"block_len is {masking.block_len}, it must be 2 to 64",
    )


def _plan(max_len: int) -> KvPlan:
    return KvPlan("full", sink=0, window=1, max_len=max_len)


def _of_twin(kv: DraftKv) -> Kv:
    """The very K/V that `open` gave."""
    kept: Any = kv
    found: Kv = kept
    return found


__all__ = ["LoadedProposer", "TwinDraftModel", "load_proposer", "masking_of"]
