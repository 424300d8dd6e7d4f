"""The models a node would serve: what their folders say, and what the verifier does when run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import trio

from kakeya.compute.device import Device, ThreadDevice
from kakeya.config.settings import Settings
from kakeya.config.sizes import shown_size
from kakeya.decoding import decode, engine_of
from kakeya.doctor.exact import exactness_findings, same_ids_finding
from kakeya.doctor.finding import Finding, failed, ok, skipped
from kakeya.doctor.pair import DrafterSide, VerifierSide, pair_findings, prefix_findings
from kakeya.drafting.dflash_checkpoint import read_dflash_checkpoint
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.models import resolve_model
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.errors import Refused
from kakeya.node.backend import BACKENDS, this_host
from kakeya.node.need import VerifierNeed, demand_memory, proposer_bytes, verifier_need
from kakeya.node.served import tokenizer_sha256
from kakeya.verifying.checkpoint import read_checkpoint
from kakeya.verifying.exactness import Measured, measure_exactness
from kakeya.verifying.verifier import Verifier

# Other tokens than those the verifier was measured with when it was loaded.
PROBE_SEED = 1
# A text that repeats, so that the n-gram proposer drafts, and ids enough to differ somewhere.
PROMPT_IDS = (5, 6, 7, 8, 9, 10, 11, 12) * 4
NUM_IDS = 32
NUM_DRAFTS = 7
REPAIR = "name another with --verifier, or fetch its folder again"


def verifier_side(folder: Path, settings: Settings) -> VerifierSide:
    """Raises Refused for a folder that is damaged or not supported."""
    config = read_checkpoint(folder, settings.verifying).config
    return VerifierSide(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
        max_context_len=config.max_context_len,
        tokenizer_sha256=tokenizer_sha256(folder),
    )


def drafter_side(folder: Path, made_for: Path, settings: Settings) -> DrafterSide:
    """made_for: the folder of the verifier the drafter says it is for.  Raises Refused."""
    config = read_dflash_checkpoint(folder, settings.drafter).config
    return DrafterSide(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_verifier_layers,
        aux_layers=config.aux_layers,
        max_context_len=config.max_context_len,
        tokenizer_sha256=tokenizer_sha256(folder) or tokenizer_sha256(made_for),
        mask_id=config.mask_id,
        block_len=config.block_len,
        sliding_window=config.sliding_window,
    )


def model_findings(settings: Settings) -> Iterator[Finding]:
    """The verifier's folder, and each drafter against the verifier."""
    side: VerifierSide | None = None
    need: VerifierNeed | None = None
    if settings.verifier == "none":
        yield skipped("verifier", "none is asked for")
    else:
        try:
            folder = _folder(settings.verifier)
            side = verifier_side(folder, settings)
            need = verifier_need(folder, settings, this_host())
            yield ok("verifier", f"{settings.verifier}, {_shown(need)}")
        except Refused as refused:
            yield failed("verifier", refused.why, do=REPAIR)
    for name in settings.proposer:
        if name == NGRAM:
            yield ok(f"proposer {NGRAM}", "fits every verifier")
        else:
            yield from _drafter_findings(name, side, settings)
    if settings.memory_limit:
        yield _memory_finding(settings, need)


def _shown(need: VerifierNeed) -> str:
    length, weights = need.checkpoint.config.max_context_len, shown_size(need.weight_bytes)
    return f"{need.backend} {need.dtype}, weights {weights}, context {length}"


def _memory_finding(settings: Settings, need: VerifierNeed | None) -> Finding:
    """A verifier that cannot be loaded counts nothing: it has its own line."""
    try:
        drafting = sum(proposer_bytes(settings, each, os.environ) for each in settings.proposer)
        demand_memory(settings, need, drafting)
    except Refused as refused:
        do = "raise --memory-limit, or bound the K/V with --kv window"
        return failed("memory limit", refused.why, do=do)
    return ok("memory limit", f"{shown_size(settings.memory_limit)} hold the models")


def _drafter_findings(
    name: str, side: VerifierSide | None, settings: Settings
) -> Iterator[Finding]:
    try:
        if (by_prefix := resolve_by_prefix(name)) is not None:
            model = verifier_side(_folder(by_prefix.model), settings)
            yield from prefix_findings(by_prefix.model_id, model, side or model)
            return
        choice = resolve_drafter(name, own_verifier=settings.verifier)
        made_for = _folder(choice.verifier)
        drafter = drafter_side(choice.folder, made_for, settings)
        against = side or verifier_side(made_for, settings)
    except Refused as refused:
        do = "name another with --proposer, or fetch its folder again"
        yield failed(f"proposer {name}", refused.why, do=do)
        return
    yield from pair_findings(choice.model_id, drafter, against)


def _folder(model: str) -> Path:
    return resolve_model(model, os.environ, lambda what, share: None)


def engines_of(settings: Settings) -> list[tuple[str, str]]:
    """(backend, dtype) of all that this host could run the verifier with, or that are asked for."""
    dtypes = ("float32", "bfloat16") if settings.dtype == "auto" else (settings.dtype,)
    backends = [each for each in BACKENDS if each in this_host().importable]
    if settings.backend != "auto":
        backends = [each for each in backends if each == settings.backend]
    return [(backend, dtype) for backend in backends for dtype in dtypes]


def load(backend: str, dtype: str, settings: Settings) -> Measured:
    """On the engine's own thread.  Raises Refused for what cannot be loaded so."""
    # The chosen twin.
    if backend == "mlx":
        from kakeya.verifying.load_mlx import load_verifier
    else:
        from kakeya.verifying.load import load_verifier  # type: ignore[assignment]
    loaded: Measured = load_verifier(
        _folder(settings.verifier),
        dtype=dtype,
        limits=settings.verifying,
        model_id=settings.verifier,
        progress=lambda share: None,
    )
    return loaded


async def engine_findings(backend: str, dtype: str, settings: Settings) -> list[Finding]:
    """Load the verifier with one backend and dtype, and hold it to its promise."""
    name = f"{backend} {dtype}"
    device = ThreadDevice(name=name, max_waiting=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        try:
            verifier = await device.run(load, backend, dtype, settings)
        except Refused as refused:
            findings = [skipped(f"exactness {name}", refused.why)]
        else:
            findings = await self_test(name, verifier, device, settings)
        nursery.cancel_scope.cancel()
    return findings


async def self_test(
    name: str, verifier: Measured, device: Device, settings: Settings
) -> list[Finding]:
    """Blocks against steps on new tokens, and one text with drafts against the same without."""
    found = await device.run(measure_exactness, verifier, PROBE_SEED)
    findings = exactness_findings(name, found, verifier.margin_bound)
    plain = await _decoded(verifier, device, settings, plain=True)
    drafted = await _decoded(verifier, device, settings, plain=False)
    return [*findings, same_ids_finding(name, plain, drafted)]


async def _decoded(
    verifier: Verifier, device: Device, settings: Settings, *, plain: bool
) -> list[int]:
    engine = engine_of(verifier, device, limits=settings.decoding)
    vocab_size = verifier.geometry.vocab_size
    ids: list[int] = []
    async for block in decode(
        engine,
        [each % vocab_size for each in PROMPT_IDS],
        max_tokens=NUM_IDS,
        num_drafts=None if plain else NUM_DRAFTS,
        draft_on="local",
        plain=plain,
    ):
        ids.extend(block.ids)
    return ids


__all__ = ["drafter_side", "engine_findings", "engines_of", "model_findings", "self_test"]
