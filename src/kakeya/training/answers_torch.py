"""What a chat model answers, many conversations at once, kept in shards so that a run goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kakeya.training.batch_torch import BatchVerifier, forward, logits_of, open_kv
from kakeya.training.chat_prompts import Material, make_prompt
from kakeya.verifying.tokenizer import Tokenizer

# Conversations of one shard, and the bounds of each: memory is bounded by their product.
ROWS, MAX_PROMPT_LEN, MAX_ANSWER_LEN = 96, 256, 160
# So many are greedy, the others at a temperature between these two.
GREEDY_SHARE, LOW, HIGH = 0.4, 0.5, 0.8
Report = Callable[[int, float, float], None]


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Conversations: ids [rows, T], padded with 0 behind `lens`; answers begin at `prompt_lens`."""

    ids: Tensor
    prompt_lens: Tensor
    lens: Tensor

    @property
    def num_answered(self) -> int:
        return int((self.lens - self.prompt_lens).sum())


def written_answers(
    folder: Path,
    verifier: BatchVerifier,
    tokenizer: Tokenizer,
    material: Material,
    *,
    num_ids: int,
    seed: int,
    report: Report,
) -> list[Answers]:
    """Shards of at least `num_ids` answered ids in all; those already in `folder` are taken."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Answers] = []
    num_written = 0
    while num_written < num_ids:
        file = folder / f"answers-{len(found):04}.safetensors"
        if not file.exists():
            prompts = prompts_of(tokenizer, material, seed=seed, shard=len(found))
            answers = answer_all(verifier, tokenizer, prompts, seed=seed * 1_000_003 + len(found))
            _save(answers, file)
        parts = load_file(file)
        found.append(Answers(parts["ids"].long(), parts["prompt_lens"], parts["lens"]))
        num_written += found[-1].num_answered
        report(len(found), num_written / num_ids, 0.0)
    return found


def prompts_of(
    tokenizer: Tokenizer, material: Material, *, seed: int, shard: int
) -> list[list[int]]:
    """ROWS prompts through the chat template; those beyond MAX_PROMPT_LEN are passed over."""
    found: list[list[int]] = []
    number = shard * 4 * ROWS
    while len(found) < ROWS:
        text = make_prompt(material, seed=seed, number=number)
        number += 1
        chat = tokenizer.render_chat([{"role": "user", "content": text}], wall=lambda: 0.0)
        ids = tokenizer.encode(chat)
        if len(ids) <= MAX_PROMPT_LEN or number > (shard + 1) * 4 * ROWS:
            found.append(ids[-MAX_PROMPT_LEN:])
    return found


@torch.inference_mode()
def answer_all(
    verifier: BatchVerifier,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    *,
    seed: int,
    is_greedy: bool = False,
) -> Answers:
    """One answer to each prompt, up to an end of text or MAX_ANSWER_LEN ids."""
    rng = torch.Generator().manual_seed(seed)
    B = len(prompts)
    heat = LOW + (HIGH - LOW) * torch.rand(B, generator=rng)
    heat[: B if is_greedy else round(B * GREEDY_SHARE)] = 0
    prompt_lens = torch.tensor([len(each) for each in prompts])
    longest = int(prompt_lens.max())
    ids = torch.zeros(B, longest + MAX_ANSWER_LEN, dtype=torch.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    kv = open_kv(verifier, B, ids.shape[1])
    hidden, _ = forward(verifier, kv, ids[:, :longest], torch.zeros(B, dtype=torch.int64))
    last = hidden[torch.arange(B), prompt_lens - 1]
    ends = torch.tensor(tokenizer.eos_ids)
    lens, live = prompt_lens.clone(), torch.arange(B)
    for _ in range(MAX_ANSWER_LEN):
        chosen = _chosen(logits_of(verifier, last), heat[live], rng)
        ids[live, lens[live]] = chosen
        lens[live] += 1
        goes_on = ~torch.isin(chosen, ends)
        if not goes_on.all():
            live = live[goes_on]
            kv.keep(goes_on.nonzero()[:, 0])
        if not len(live):
            break
        hidden, _ = forward(verifier, kv, ids[live, lens[live] - 1, None], lens[live] - 1)
        last = hidden[:, 0]
    return Answers(ids, prompt_lens, lens)


def _chosen(logits: Tensor, heat: Tensor, rng: torch.Generator) -> Tensor:
    """The likeliest id where heat is 0, else one drawn at that temperature (Gumbel-max)."""
    chosen = logits.argmax(-1)
    [warm] = (heat > 0).nonzero(as_tuple=True)
    if len(warm):
        noise = torch.empty(len(warm), logits.shape[1]).exponential_(generator=rng).log_().neg_()
        chosen[warm] = (logits[warm] + heat[warm, None] * noise).argmax(-1)
    return chosen


def _save(answers: Answers, file: Path) -> None:
    beside = file.with_suffix(".part")
    parts = {
        "ids": answers.ids.to(torch.int32),
        "prompt_lens": answers.prompt_lens,
        "lens": answers.lens,
    }
    save_file(parts, beside)
    os.replace(beside, file)


def frequent_ids(shards: list[Answers], num_rows: int, vocab_size: int) -> Tensor:
    """The `num_rows` ids the answers use most, ascending; seldom ones fill up, lowest first."""
    counts = np.zeros(vocab_size, np.int64)
    for each in shards:
        for row, start, end in zip(each.ids, each.prompt_lens, each.lens, strict=True):
            counts += np.bincount(row[start:end].numpy(), minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")[:num_rows]
    return torch.from_numpy(np.sort(order))


__all__ = ["Answers", "answer_all", "frequent_ids", "prompts_of", "written_answers"]
