"""What a node does beside serving, once, at its start: load its verifier, measure, announce."""

from __future__ import annotations

from functools import partial

import numpy as np
import structlog
import trio

from kakeya.console.slot import Ready
from kakeya.decoding import Engine, decode, engine_of
from kakeya.drafting.drafter import DflashDrafter
from kakeya.drafting.ngram import NGRAM
from kakeya.drafting.proposer_card import ProposerCard
from kakeya.embedded.proposers import PrefixChoice, resolve_by_prefix
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, ROLE_VERIFIER, Model
from kakeya.node.need import chosen_dtype
from kakeya.node.parts import Parts
from kakeya.node.progress import ProgressLog
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import WireArray

log = structlog.get_logger(__name__)

# Enough steps for a figure, few enough to be over before anybody asks.
NUM_MEASURED_IDS = 8
NUM_MEASURED_DRAFTS = 64
DRAFT_LEN = 4
NUM_DRAFTED_BLOCKS = 20
MEASURED_CONTEXT_LEN = 32
# A text that repeats, long enough to be like a real prefix.
DRAFT_PREFIX = tuple(i % 97 for i in range(1024))


async def load_verifier(parts: Parts) -> None:
    """Fill the slot, measure, announce.  What is wrong with a model is told to who asks for it."""
    settings, device = parts.settings, parts.verifying_device
    if settings.verifier == "none":
        parts.slot.leave_empty()
        return
    try:
        served = await device.run(parts.seams.load_model, settings, ProgressLog())
    except Refused as refused:
        log.error("the verifier cannot be loaded", model=settings.verifier, why=refused.why)
        parts.slot.refuse(refused)
        return
    verifier = served.verifier
    engine = engine_of(
        verifier,
        device,
        limits=settings.decoding,
        kept_prefixes=settings.kept_prefixes,
        node_id=parts.fleet.node_id,
    )
    speed = await _verifier_speed(engine)
    parts.slot.fill(
        Ready(engine, served.tokenizer, served.tokenizer_sha256, served.backend, served.family)
    )
    parts.offers.set_verifier(Model(verifier.model_id, ROLE_VERIFIER, verifier.dtype, speed))
    log.info(
        "the verifier is ready",
        model=verifier.model_id,
        backend=served.backend,
        dtype=verifier.dtype,
        tokens_per_second=round(speed, 1),
        margin_bound=verifier.margin_bound,
    )


async def load_proposers(parts: Parts) -> None:
    """Load, serve, measure and announce every drafter; what is wrong with one is logged."""
    await _load_all(parts)
    parts.proposers_loaded.set()


async def _load_all(parts: Parts) -> None:
    device = parts.dflash.device
    for name in parts.settings.proposer:
        if name == NGRAM:
            continue
        by_prefix = resolve_by_prefix(name)
        if by_prefix is not None:
            await _load_proposer(parts, by_prefix)
            continue
        try:
            load = partial(parts.seams.load_drafter, parts.settings, name, ProgressLog())
            loaded = await device.run(load)
        except Refused as refused:
            log.error("a drafter cannot be loaded", proposer=name, why=refused.why)
            continue
        speed = await _speed(parts, loaded.drafter)
        parts.dflash.serve_drafter(loaded.drafter, loaded.card)
        label = chosen_dtype(parts.settings)
        parts.offers.set_proposer(Model(loaded.card.model_id, ROLE_PROPOSER, label, speed))
        log.info(
            "a drafter is ready",
            model=loaded.card.model_id,
            verifier=loaded.card.verifier,
            tokens_per_second=speed,
        )


async def _load_proposer(parts: Parts, choice: PrefixChoice) -> None:
    """The same for a model that drafts by prefix."""
    device = parts.proposing_device
    try:
        load = partial(parts.seams.load_proposer, parts.settings, choice, ProgressLog())
        loaded = await device.run(load)
    except Refused as refused:
        log.error("a proposer cannot be loaded", proposer=choice.model_id, why=refused.why)
        return
    parts.drafting.add(loaded.proposer, loaded.card, device=device)
    speed = await _prefix_speed(parts, loaded.card)
    parts.offers.set_proposer(Model(choice.model_id, ROLE_PROPOSER, loaded.dtype, speed))
    log.info("a proposer is ready", model=choice.model_id, tokens_per_second=speed)


async def _prefix_speed(parts: Parts, card: ProposerCard) -> float:
    """Drafted tokens a second behind a short prefix, by the way peers ask; 0 without time."""
    request = pb.ProposeBlockRequest(
        committed_token_ids=[0] * MEASURED_CONTEXT_LEN,
        block_size=DRAFT_LEN,
        num_steps=card.num_steps,
        model_id=card.model_id,
    )
    try:
        await parts.drafting.ProposeBlock(request)
        started_s = trio.current_time()
        for _ in range(NUM_DRAFTED_BLOCKS):
            await parts.drafting.ProposeBlock(request)
    except Refused as refused:
        log.warning("a proposer's speed is not known", model=card.model_id, why=refused.why)
        return 0.0
    elapsed_s = trio.current_time() - started_s
    return round(NUM_DRAFTED_BLOCKS * DRAFT_LEN / elapsed_s, 1) if elapsed_s else 0.0


async def _speed(parts: Parts, drafter: DflashDrafter) -> float:
    """Drafted tokens a second; 0 where no time passes (a simulated clock)."""
    shape, device = drafter.shape, parts.dflash.device
    length = min(MEASURED_CONTEXT_LEN, shape.max_extend_len, shape.max_context_len // 2)
    rows = np.zeros((length, shape.hidden_size), np.float32)
    aux = [WireArray("float32", rows)] * shape.num_aux
    context = await device.run(drafter.extend, None, 0, aux)
    started_s = trio.current_time()
    for _ in range(NUM_DRAFTED_BLOCKS):
        await device.run(drafter.draft, context, length, 0, shape.max_num_drafts)
    elapsed_s = trio.current_time() - started_s
    return round(NUM_DRAFTED_BLOCKS * shape.max_num_drafts / elapsed_s, 1) if elapsed_s else 0.0


async def measure_drafting(parts: Parts) -> None:
    """Put the n-gram proposer's measured speed on the card."""
    started_s = trio.current_time()
    for _ in range(NUM_MEASURED_DRAFTS):
        await parts.drafting_device.run(
            lambda: parts.ngram.propose(DRAFT_PREFIX, num_drafts=DRAFT_LEN, num_steps=1)
        )
    elapsed_s = trio.current_time() - started_s
    speed = NUM_MEASURED_DRAFTS * DRAFT_LEN / elapsed_s if elapsed_s else 0.0
    parts.offers.set_proposer(Model(NGRAM, ROLE_PROPOSER, "none", round(speed)))


async def _verifier_speed(engine: Engine) -> float:
    """Tokens a second of plain decoding; 0 where no time passes (a simulated clock)."""
    decode_s, num_ids = 0.0, 0
    async for block in decode(engine, (0,), max_tokens=NUM_MEASURED_IDS, plain=True):
        if block.tally is not None:
            decode_s, num_ids = block.tally.decode_s, block.tally.num_ids
    return round(num_ids / decode_s, 1) if decode_s else 0.0
