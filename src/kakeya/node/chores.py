"""What a node does beside serving, once, at its start: load its verifier, measure, announce."""

from __future__ import annotations

import structlog
import trio

from kakeya.console.slot import Ready
from kakeya.decoding import Engine, decode, engine_of
from kakeya.drafting.ngram import NGRAM
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, ROLE_VERIFIER, Model
from kakeya.node.parts import Parts
from kakeya.node.progress import ProgressLog

log = structlog.get_logger(__name__)

# Enough steps for a figure, few enough to be over before anybody asks.
NUM_MEASURED_IDS = 8
NUM_MEASURED_DRAFTS = 64
DRAFT_LEN = 4
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
    engine = engine_of(verifier, device, limits=settings.decoding, node_id=parts.fleet.node_id)
    speed = await _verifier_speed(engine)
    parts.slot.fill(Ready(engine, served.tokenizer))
    parts.offers.set_verifier(Model(verifier.model_id, ROLE_VERIFIER, verifier.dtype, speed))
    log.info(
        "the verifier is ready",
        model=verifier.model_id,
        dtype=verifier.dtype,
        tokens_per_second=round(speed, 1),
        margin_bound=verifier.margin_bound,
    )


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
