"""What each text is when the model decodes it alone, token by token: ids and layers' outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from kakeya.decoding.sampler import Sampler
from kakeya.decoding.sampling import GREEDY
from kakeya.verifying.verifier import Bank, KvMode, KvPlan
from tests.sim.model import (
    EOS_ID,
    MAX_CONTEXT_LEN,
    NUM_LAYERS,
    Array,
    SimKv,
    SimVerifier,
    banks_of,
    evicted_of,
    step,
)

SEED = 7
SINK = 2


@dataclass(frozen=True, eq=False)
class Truth:
    """ids: handed out behind the prompt.  rows: [positions, NUM_LAYERS, HIDDEN_SIZE]."""

    ids: tuple[int, ...]
    rows: Array


@cache
def truth(
    prompt_ids: tuple[int, ...],
    max_tokens: int,
    window: int = 0,
    temperature: float = 0.0,
    restored: bool = False,
) -> Truth:
    """Plain decoding of a prompt; `window` 0: with all K/V, `temperature` 0: greedily.

    restored: behind the banks that a drafter makes of the whole prompt's context.
    """
    mode: KvMode = "restored" if restored else "window" if window else "full"
    sink = SINK if window else 0
    plan = KvPlan(mode, sink, window, MAX_CONTEXT_LEN, prompt_len=len(prompt_ids))
    kv = SimVerifier().open(plan)
    ids, rows = list(prompt_ids), [step(kv, each) for each in prompt_ids[:-1]]
    if restored:
        restore(kv, np.array(rows, np.float32).reshape(len(rows), NUM_LAYERS, -1))
    for _ in range(min(max_tokens, MAX_CONTEXT_LEN - len(prompt_ids))):
        chosen, row = decided(kv, ids[-1], temperature)
        ids.append(chosen)
        rows.append(row)
        if chosen == EOS_ID:
            break
    shape = (len(rows), NUM_LAYERS, -1)
    return Truth(tuple(ids[len(prompt_ids) :]), np.array(rows, np.float32).reshape(shape))


def restore(kv: SimKv, rows: Array) -> None:
    """Put the banks of `rows` in the place of what the plan evicts."""
    evicted = evicted_of(kv.plan)
    banks = banks_of(rows, evicted) if evicted else []
    SimVerifier().restore(
        kv,
        [Bank(layer, "float32", k[:, None], v[:, None]) for layer, (k, v) in enumerate(banks)],
    )


def decided(kv: SimKv, last: int, temperature: float) -> tuple[int, list[Array]]:
    """What follows `last`, and the layers' outputs at its position.

    Greedy is decided here, by argmax alone; only sampling needs the product's own rule.
    """
    rows = SimVerifier().forward(kv, (last,), want_logits=True, aux_layers=range(NUM_LAYERS))
    outputs = [layer[0] for layer in rows.aux]
    if not temperature:
        assert rows.logits is not None
        return int(np.argmax(rows.logits[0])), outputs
    sampler = Sampler(replace(GREEDY, temperature=temperature, seed=SEED))
    return sampler.choose(rows, first_position=kv.length, bound=0.0).ids[0], outputs
