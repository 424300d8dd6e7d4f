"""The DFlash drafters a node serves: from a name to one that drafts, and what peers are told."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from kakeya.config.settings import Settings
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.drafter_card import DrafterCard
from kakeya.drafting.ftheta_file import demand_maps_fit, find_maps
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.models import name_of, resolve_model
from kakeya.node.backend import BACKENDS
from kakeya.node.need import chosen_dtype
from kakeya.node.served import tokenizer_sha256

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class LoadedDrafter:
    drafter: DflashDrafter
    card: DrafterCard


def load_drafter_named(
    settings: Settings, name: str, progress: Progress, *, backend: str = "torch"
) -> LoadedDrafter:
    """Load what one --proposer names, in one of the BACKENDS.  Runs on the engine's own thread.

    Raises Refused for a drafter that is missing, damaged or made for another verifier.
    """
    assert backend in BACKENDS
    choice = resolve_drafter(name, own_verifier=settings.verifier)
    verifier_folder = resolve_model(choice.verifier, os.environ, progress)
    dtype = chosen_dtype(settings)
    # The chosen twin: a node without a drafter needs no tensor library, and starts without one.
    loading = import_module(f"kakeya.drafting.dflash_load_{backend}")
    part = loading.read_verifier_part(verifier_folder, dtype=dtype, limits=settings.drafter)
    ftheta = import_module(f"kakeya.drafting.ftheta_{backend}")
    maps, restorer = find_maps(choice.folder), ftheta.load_restorer(choice.folder)
    drafter = loading.load_drafter(
        choice.folder,
        verifier=part,
        dtype=dtype,
        limits=settings.drafter,
        model_id=choice.model_id,
        restorer=restorer,
        progress=lambda share: progress("loading the drafter", share),
    )
    if maps is not None:
        demand_maps_fit(maps, drafter.config)
    card = DrafterCard(
        model_id=choice.model_id,
        verifier=name_of(choice.verifier),
        vocab_size=part.shape.vocab_size,
        hidden_size=part.shape.hidden_size,
        num_layers=part.shape.num_layers,
        tokenizer_sha256=tokenizer_sha256(verifier_folder),
        aux_layers=drafter.config.aux_layers,
        max_context_len=drafter.shape.max_context_len,
        max_num_drafts=drafter.shape.max_num_drafts,
        restores=restorer is not None,
        family=part.family,
        mask_id=drafter.config.mask_id,
    )
    return LoadedDrafter(drafter, card)


__all__ = ["LoadedDrafter", "load_drafter_named"]
