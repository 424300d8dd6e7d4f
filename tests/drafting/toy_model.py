"""A `DraftModel` without tensors; its word depends on every id its K/V holds: a wrong one shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

VOCAB_SIZE, MASK_ID = 97, 1


@dataclass(eq=False)
class ToyKv:
    max_len: int
    slack: int
    ids: list[int] = field(default_factory=list)
    forgettable_from: int = 0

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass
class ToyModel:
    """slack: rows that can be forgotten, as where layers slide.  rows: forwarded, pass by pass."""

    model_id: str = "toy"
    vocab_size: int = VOCAB_SIZE
    max_context_len: int = 4096
    piece_len: int = 64
    slack: int = 1 << 30
    rows: list[int] = field(default_factory=list)
    num_opened: int = 0

    def kv_bytes(self, max_len: int) -> int:
        return 10 * max_len

    def open(self, max_len: int) -> ToyKv:
        self.num_opened += 1
        return ToyKv(max_len, self.slack)

    def read(self, kv: ToyKv, ids: Sequence[int]) -> None:
        assert 0 < len(ids) <= self.piece_len
        assert len(kv.ids) + len(ids) <= kv.max_len
        kv.ids.extend(ids)
        kv.forgettable_from = max(kv.forgettable_from, len(kv.ids) - kv.slack)
        self.rows.append(len(ids))

    def next_id(self, kv: ToyKv, ids: Sequence[int]) -> int:
        self.read(kv, ids)
        return follows(kv.ids)

    def denoise(self, kv: ToyKv, ids: Sequence[int]) -> np.ndarray:
        """The row before a mask says what `follows` would, surest where the text is known."""
        self.rows.append(len(ids))
        logits = np.zeros((len(ids), VOCAB_SIZE), np.float32)
        text = list(kv.ids)
        for row, each in enumerate(ids):
            text.append(each)
            logits[row, follows(text)] = 20.0 - 2 * sum(i == MASK_ID for i in ids[: row + 1])
            logits[row, MASK_ID] = 50.0
        return logits

    def trim(self, kv: ToyKv, length: int) -> None:
        assert kv.forgettable_from <= length <= len(kv.ids)
        del kv.ids[length:]

    def activation_bytes(self, num_rows: int, num_positions: int) -> int:
        return 1000 * num_rows + num_positions


def follows(ids: Sequence[int]) -> int:
    """2 … VOCAB_SIZE - 1, by all of `ids`."""
    return hash(tuple(ids)) % (VOCAB_SIZE - 2) + 2


def greedy(ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
    text = list(ids)
    for _ in range(num_drafts):
        text.append(follows(text))
    return tuple(text[len(ids) :])


def step(jobs):
    """The next job; the draft when it was the last."""
    try:
        next(jobs)
    except StopIteration as end:
        return end.value
    return None


def finished(jobs):
    """The draft of all jobs, one after the other."""
    while (draft := step(jobs)) is None:
        pass
    return draft
