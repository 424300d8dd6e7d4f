"""What the tiny set is worth, on text it has never seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from kakeya.config.drafter import DrafterLimits
from kakeya.config.verifying import VerifyingLimits
from kakeya.drafting.dflash_drafter_torch import DflashTorchDrafter
from kakeya.drafting.dflash_load_torch import load_drafter, read_verifier_part
from kakeya.drafting.drafter import RestorePlan
from kakeya.drafting.ftheta_torch import load_restorer
from kakeya.drafting.ngram import NgramIndex
from kakeya.training.baselines import count_baselines
from kakeya.training.drafter_torch import (
    BLOCK_LEN,
    TinyVerifier,
    corpus_ids,
    load_tiny,
    rounds_of,
    rows_of,
)
from kakeya.training.ftheta_torch import load_for_fit
from kakeya.training.generate_torch import continue_all
from kakeya.verifying.load import load_verifier
from kakeya.verifying.verifier import Bank, Kv, KvPlan, Verifier
from kakeya.wire.tensor import WireArray

PROMPT_LEN, ANSWER_LEN, FIRST_LEN = 64, 200, 32
# A text that says the same 12 ids again within its last 200 has run into a loop.
LOOP_LEN = 12
SINK, WINDOW = 4, 64
LONG_PROMPT_LEN, JUDGED_LEN = 320, 48
Figures = dict[str, float | list[float]]


def evaluate_verifier(folder: Path, *, num_tokens: int, seed: int) -> Figures:
    """Held-out cross-entropy (nats a token), beside what counting says."""
    tiny = load_tiny(folder)
    train, held_out = (corpus_ids(folder, held_out=each) for each in (False, True))
    rng = np.random.default_rng((seed, 4))
    total, count = 0.0, 0
    with torch.inference_mode():
        while count < num_tokens:
            ids = rows_of(held_out, rng.integers(0, len(held_out) - 513, 4), 513)
            _, logits = tiny.read(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
            total += loss.item()
            count += ids[:, 1:].numel()
    start = int(rng.integers(0, len(held_out) - num_tokens))
    counted = count_baselines(train, held_out[start : start + num_tokens], tiny.shape.vocab_size)
    return {"held_out_nats": total / count, **counted}


def evaluate_drafter(verifier: Path, drafter: Path, *, num_prompts: int, seed: int) -> Figures:
    """Tokens a round by the drafter and by n-gram, on held-out prompts.

    Three kinds of text: greedy (which runs into loops), the first ids of it, and sampled text at
    a temperature of 0.7 that has no loop.
    """
    tiny = load_tiny(verifier)
    config, weights = load_for_fit(tiny, drafter)
    texts = {
        "greedy": answers(tiny, verifier, num_prompts, seed=seed, temperature=0.0),
        "sampled": answers(tiny, verifier, num_prompts, seed=seed + 1, temperature=0.7),
    }
    texts["first"] = texts["greedy"][:, : PROMPT_LEN + FIRST_LEN + BLOCK_LEN]
    texts["sampled"] = torch.stack([row for row in texts["sampled"] if not loops(row.tolist())])
    figures: Figures = {}
    for name in ("sampled", "first", "greedy"):
        ids = texts[name]
        rate, by_position = rounds_of(config, weights, tiny, ids, PROMPT_LEN)
        figures[f"{name}_tokens_per_round"] = rate
        figures[f"{name}_acceptance_by_position"] = [round(each, 3) for each in by_position]
        figures[f"{name}_ngram_tokens_per_round"] = ngram_rounds(ids.tolist(), PROMPT_LEN)
        figures[f"{name}_texts"] = float(len(ids))
    return figures


def ngram_rounds(texts: Sequence[Sequence[int]], first: int) -> float:
    """Tokens a round of the n-gram proposer over texts whose prompts have `first` ids."""
    num_rounds = num_ids = 0
    for text in texts:
        index, at, end = NgramIndex(), first, len(text) - BLOCK_LEN
        index.extend(text[: first + 1])
        while at < end:
            drafted = index.draft(BLOCK_LEN - 1)
            hits = 0
            while hits < len(drafted) and drafted[hits] == text[at + 1 + hits]:
                hits += 1
            index.extend(text[at + 1 : at + 2 + hits])
            num_rounds, num_ids, at = num_rounds + 1, num_ids + 1 + hits, at + 1 + hits
    return num_ids / num_rounds


def evaluate_ftheta(verifier: Path, drafter: Path, *, num_prompts: int, seed: int) -> Figures:
    """Full, window and restored K/V on held-out prompts longer than the window.

    Nats a token of the true continuation, and how often the likeliest id is that of full K/V.
    """
    limits = DrafterLimits()
    model = load_verifier(
        verifier,
        dtype="float32",
        limits=VerifyingLimits(),
        model_id="tiny",
        progress=lambda share: None,
    )
    drafting = load_drafter(
        drafter,
        verifier=read_verifier_part(verifier, dtype="float32", limits=limits),
        dtype="float32",
        limits=limits,
        model_id="tiny",
        restorer=load_restorer(drafter),
        progress=lambda share: None,
    )
    text = corpus_ids(verifier, held_out=True)
    rng = np.random.default_rng((seed, 5))
    length = LONG_PROMPT_LEN + JUDGED_LEN
    nats: dict[str, list[float]] = {}
    choices: dict[str, list[int]] = {}
    for start in rng.integers(0, len(text) - length, num_prompts):
        ids = text[start : start + length].tolist()
        for mode in ("full", "window", "restored", "restored_unseeded"):
            logits = _judged(model, drafting, ids, mode)
            chances = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
            true = ids[LONG_PROMPT_LEN:]
            nats.setdefault(mode, []).extend(-chances[np.arange(len(true)), true])
            choices.setdefault(mode, []).extend(logits.argmax(1).tolist())
    figures: Figures = {f"{mode}_nats": float(np.mean(each)) for mode, each in nats.items()}
    for mode, each in choices.items():
        same = np.array(each) == np.array(choices["full"])
        figures[f"{mode}_agreement"] = float(same.mean())
    return figures


def _judged(
    model: Verifier, drafter: DflashTorchDrafter, ids: Sequence[int], mode: str
) -> NDArray[np.float32]:
    """[JUDGED_LEN, vocab_size]: what the model says of the ids behind the prompt."""
    if mode in ("full", "window"):
        plan = KvPlan("full" if mode == "full" else "window", SINK, WINDOW, len(ids))
    else:
        plan = KvPlan("restored", SINK, WINDOW, len(ids), prompt_len=LONG_PROMPT_LEN)
    kv = model.open(plan)
    aux = _read(model, kv, ids[: LONG_PROMPT_LEN - 1], drafter.config.aux_layers)
    if plan.mode == "restored":
        model.restore(kv, _banks(drafter, ids[:LONG_PROMPT_LEN], aux, mode == "restored"))
    rows = []
    for each in ids[LONG_PROMPT_LEN - 1 : -1]:
        found = model.forward(kv, [each], want_logits=True)
        assert found.logits is not None
        rows.append(found.logits[0])
    return np.stack(rows)


def _read(
    model: Verifier, kv: Kv, ids: Sequence[int], layers: Sequence[int]
) -> list[NDArray[np.generic]]:
    pieces = [
        model.prefill(kv, ids[at : at + model.prefill_chunk_len], aux_layers=layers)
        for at in range(0, len(ids), model.prefill_chunk_len)
    ]
    return [np.concatenate(each) for each in zip(*pieces, strict=True)]


def _banks(
    drafter: DflashTorchDrafter,
    prompt_ids: Sequence[int],
    aux: Sequence[NDArray[np.generic]],
    is_seeded: bool,
) -> list[Bank]:
    context, length = None, 0
    step = drafter.shape.max_extend_len
    while is_seeded and length < len(aux[0]):
        rows = [WireArray("float32", layer[length : length + step]) for layer in aux]
        context = drafter.extend(context, length, rows)
        length += len(rows[0].bits)
    plan = RestorePlan(tuple(prompt_ids), SINK, WINDOW, False)
    found = [bank for bank in drafter.restore(plan, context, length) if bank is not None]
    return [Bank(b.layer, b.k.dtype, b.k.bits[0], b.v.bits[0]) for b in found]


def answers(
    tiny: TinyVerifier, folder: Path, num_prompts: int, *, seed: int, temperature: float
) -> Tensor:
    """[num_prompts, PROMPT_LEN + ANSWER_LEN]: held-out prompts and the verifier's answers."""
    text = corpus_ids(folder, held_out=True)
    rng = np.random.default_rng((seed, 6))
    return continue_all(
        tiny.params,
        tiny.shape,
        rows_of(text, rng.integers(0, len(text) - PROMPT_LEN, num_prompts), PROMPT_LEN),
        num_ids=ANSWER_LEN,
        temperatures=torch.full((num_prompts,), temperature),
        rng=torch.Generator().manual_seed(seed),
    )


def loops(ids: Sequence[int]) -> bool:
    """Whether LOOP_LEN ids in a row stand in the answer twice."""
    answer = ids[PROMPT_LEN:]
    seen = set()
    for at in range(len(answer) - LOOP_LEN + 1):
        run = tuple(answer[at : at + LOOP_LEN])
        if run in seen:
            return True
        seen.add(run)
    return False


__all__ = [
    "answers",
    "evaluate_drafter",
    "evaluate_ftheta",
    "evaluate_verifier",
    "loops",
    "ngram_rounds",
]
