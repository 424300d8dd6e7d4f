"""Requests of a DFlash session for tests: one of each kind, and the way into each state."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from kakeya.config.wire import WireLimits
from kakeya.drafting import session_states as s
from kakeya.drafting.aux_rows import AuxRows
from kakeya.drafting.drafter import DrafterShape, RestorePlan
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import WireArray, encode
from tests.drafting.numpy_drafter import SHAPE

PROMPT = (5, 6, 7, 8, 9, 10)
PROMPT_LEN = len(PROMPT)


def restore(
    ids: Sequence[int] = PROMPT, *, sink=1, window=2, omits=False, model_id=""
) -> s.Restore:
    return s.Restore(RestorePlan(tuple(ids), sink, window, omits), model_id)


def tensors(
    num_rows: int, *, seed: int = 0, first: int = 0, shape: DrafterShape = SHAPE, dtype="float32"
) -> list[pb.Tensor]:
    """num_aux tensors [1, num_rows, hidden_size]; a row depends on seed and position alone."""
    made = []
    for layer in range(shape.num_aux):
        # Cheap numbers with no pattern: tests make thousands of rows.
        at = np.arange(first, first + num_rows, dtype=np.uint32)[:, None] * np.uint32(2654435761)
        column = np.arange(shape.hidden_size, dtype=np.uint32)[None] * np.uint32(40503)
        mixed = (at ^ (column + np.uint32(seed * 97 + layer * 7919))) * np.uint32(2246822519)
        bits = ((mixed >> 8).astype(np.float32) / (1 << 23) - 1.0)[None]
        if dtype == "bfloat16":
            bits = (bits.view(np.uint32) >> 16).astype(np.uint16)
        elif dtype == "float16":
            bits = bits.astype(np.float16)
        made.append(encode(WireArray(dtype, bits)))
    return made


def aux(num_rows: int, **more) -> AuxRows:
    shape = more.get("shape", SHAPE)
    return AuxRows(tensors(num_rows, **more), num_rows, shape=shape, limits=WireLimits())


def seed(num_rows: int = PROMPT_LEN, **more) -> s.SeedContext:
    return s.SeedContext(aux(num_rows, **more), 0, num_rows)


def extend(first: int = PROMPT_LEN, num_rows: int = 2, **more) -> s.ExtendContext:
    return s.ExtendContext(aux(num_rows, first=first, **more), first, first + num_rows)


def draft(context_len: int = PROMPT_LEN, *, bonus_id=7, num_drafts=3) -> s.DraftBlock:
    return s.DraftBlock(bonus_id, context_len, num_drafts)


# A request of each kind that fits wherever the table has it.
ONE_OF_EACH = {
    s.Restore: restore(),
    s.SeedContext: seed(),
    s.DraftBlock: draft(),
    s.ExtendContext: extend(),
    s.CloseSession: s.CloseSession(),
}
# The shortest way into each open state.
PATHS: dict[type, list[type]] = {
    s.Opened: [],
    s.Restored: [s.Restore],
    s.Seeded: [s.Restore, s.SeedContext],
    s.Drafting: [s.Restore, s.SeedContext, s.DraftBlock],
}


def seed_of(seed: int | None = None) -> random.Random:
    """A source of chance that says how to get the same again."""
    chosen = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {chosen}")  # noqa: T201
    return random.Random(chosen)
