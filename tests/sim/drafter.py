"""A small DFlash drafter for the simulated model, which looks at every row it was given.

What it drafts follows from its context alone, is often right, and never a secret: before each draft
it compares its context, bit by bit, with what the verifier's layers put out for some text's prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kakeya.drafting.drafter import BlockAsk, DrafterShape, LayerBank, RestorePlan
from kakeya.drafting.drafter_card import DrafterCard
from kakeya.drafting.proposer import Draft
from kakeya.node.drafters import LoadedDrafter
from kakeya.wire.tensor import WireArray
from tests.sim.model import (
    HIDDEN_SIZE,
    MAX_CONTEXT_LEN,
    NUM_LAYERS,
    VOCAB_SIZE,
    Array,
    banks_of,
    weights,
)

MODEL_ID = "sim-dflash"
# --proposer names it so: a name that the product knows without looking at the disk.
PROPOSER = "tiny"
AUX_LAYERS = tuple(range(NUM_LAYERS))
SHAPE = DrafterShape(
    vocab_size=VOCAB_SIZE,
    num_aux=len(AUX_LAYERS),
    hidden_size=HIDDEN_SIZE,
    max_context_len=MAX_CONTEXT_LEN,
    max_num_drafts=8,
    max_extend_len=16,
)
# Hears of every context that is drafted from: [context_len, NUM_LAYERS, HIDDEN_SIZE].
Hears = Callable[[Array], None]


@dataclass
class SimContext:
    """rows: [MAX_CONTEXT_LEN, NUM_LAYERS, HIDDEN_SIZE]; what was not written is loud."""

    rows: Array = field(
        default_factory=lambda: np.full((MAX_CONTEXT_LEN, NUM_LAYERS, HIDDEN_SIZE), np.float32(1e3))
    )

    @property
    def resident_bytes(self) -> int:
        return self.rows.nbytes


@dataclass
class SimDrafter:
    """See drafting.drafter.DflashDrafter."""

    hears: Hears = lambda rows: None
    model_id: str = MODEL_ID
    shape: DrafterShape = SHAPE

    def context_bytes(self, context_len: int) -> int:
        return MAX_CONTEXT_LEN * NUM_LAYERS * HIDDEN_SIZE * 4

    def restore(
        self, plan: RestorePlan, context: SimContext | None, context_len: int
    ) -> Iterator[LayerBank | None]:
        """Banks of the layers' outputs where they are known, else of the ids alone."""
        evicted = list(range(plan.sink, max(plan.sink, len(plan.prompt_ids) - plan.window)))
        if context is None or context_len <= max(evicted, default=0):
            embedded = weights().embedding[list(plan.prompt_ids)]
            rows = np.repeat(embedded[:, None], NUM_LAYERS, axis=1)
        else:
            rows = context.rows
        yield None
        for layer, (k, v) in enumerate(banks_of(rows, evicted) if evicted else []):
            shape = (1, len(evicted), 1, HIDDEN_SIZE)
            yield LayerBank(
                layer,
                WireArray("float32", k.reshape(shape)),
                WireArray("float32", v.reshape(shape)),
            )

    def extend(
        self, context: SimContext | None, context_len: int, aux: Sequence[WireArray]
    ) -> SimContext:
        context = context or SimContext()
        end = context_len + len(aux[0].bits)
        for layer, rows in enumerate(aux):
            context.rows[context_len:end, layer] = rows.bits
        return context

    def draft(self, context: SimContext, context_len: int, bonus_id: int, num_drafts: int) -> Draft:
        self.hears(context.rows[:context_len])
        ids, last = [], bonus_id
        leaning = context.rows[context_len - 1, -1] * np.float32(0.3)
        for _ in range(num_drafts):
            x = weights().embedding[last] + leaning
            last = int(np.argmax(weights().head @ x))
            ids.append(last)
        return Draft(tuple(ids), forward_passes=1)

    def draft_together(self, asks: Sequence[BlockAsk]) -> list[Draft]:
        return [
            self.draft(each.context, each.context_len, each.bonus_id, each.num_drafts)  # type: ignore[arg-type]
            for each in asks
        ]


def loaded(hears: Hears) -> LoadedDrafter:
    """What the node's seam for drafters gives."""
    card = DrafterCard(
        model_id=MODEL_ID,
        verifier="sim-lm",
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN_SIZE,
        num_layers=NUM_LAYERS,
        tokenizer_sha256="",
        aux_layers=AUX_LAYERS,
        max_context_len=SHAPE.max_context_len,
        max_num_drafts=SHAPE.max_num_drafts,
        restores=True,
    )
    return LoadedDrafter(SimDrafter(hears), card)
