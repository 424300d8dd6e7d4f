"""A small real transformer in numpy, whose greedy decode is the truth of every simulated text.

Every row is computed by itself, so a block's rows equal those of one-token passes bit for bit,
unless the verifier is told to blur: then rows of a block are off by less than its margin bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kakeya.errors import demand
from kakeya.verifying.verifier import Bank, Geometry, KvPlan, Rows

VOCAB_SIZE = 48
HIDDEN_SIZE = 16
NUM_LAYERS = 2
MAX_CONTEXT_LEN = 512
EOS_ID = 0
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """query_key: [2 · hidden, hidden]; value, up, down likewise; slope: how attention fades."""

    query_key: Array
    value: Array
    up: Array
    down: Array
    slope: float


@dataclass(frozen=True)
class Weights:
    embedding: Array  # [VOCAB_SIZE, HIDDEN_SIZE]
    head: Array  # [VOCAB_SIZE, HIDDEN_SIZE]
    layers: tuple[Layer, ...]


@cache
def weights() -> Weights:
    """The same for every node: they serve one model."""
    rng = np.random.default_rng(20_240_826)

    def matrix(rows: int, columns: int, scale: float) -> Array:
        return (rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    h = HIDDEN_SIZE
    embedding = matrix(VOCAB_SIZE, h, 4.0)
    # What follows an id is mostly another fixed id, unless what was said before is against it:
    # texts run in rounds that drafts can copy, and leave them now and then.
    head = np.roll(embedding, 1, axis=0) + matrix(VOCAB_SIZE, h, 1.0)
    return Weights(
        embedding,
        head,
        tuple(
            Layer(matrix(2 * h, h, 0.8), matrix(h, h, 1.6), matrix(2 * h, h, 1.0),
                  matrix(h, 2 * h, 1.0), slope)
            for slope in (0.4, 0.02)
        ),
    )  # fmt: skip


@dataclass
class SimKv:
    """keys, values: [NUM_LAYERS, max_len, HIDDEN_SIZE]."""

    plan: KvPlan
    keys: Array
    values: Array
    length: int = 0
    last_forward_len: int = 0

    @property
    def resident_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    @property
    def rewindable_len(self) -> int:
        evicted = evicted_of(self.plan)
        return min([self.length, *evicted])


@dataclass
class SimVerifier:
    """The Verifier of a simulated node.  blur: how far the logits of a block's rows may be off."""

    blur: float = 0.0
    model_id: str = "sim-lm"
    dtype: str = "float32"
    prefill_chunk_len: int = 8
    max_kvs: int = 64
    opened: list[int] = field(default_factory=list)

    @property
    def margin_bound(self) -> float:
        # The two best may be off in opposite directions.
        return 2 * self.blur

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            VOCAB_SIZE, HIDDEN_SIZE, NUM_LAYERS, 1, HIDDEN_SIZE, MAX_CONTEXT_LEN,
            ("full_attention",) * NUM_LAYERS, None,
        )  # fmt: skip

    def open(self, plan: KvPlan) -> SimKv:
        demand(plan.max_len <= MAX_CONTEXT_LEN, "RESOURCE_EXHAUSTED", "no room")
        shape = (NUM_LAYERS, plan.max_len, HIDDEN_SIZE)
        # What is not written yet must not matter: let it be loud.
        junk = np.full(shape, np.float32(1e3))
        return SimKv(plan, junk, junk.copy())

    def prefill(
        self, kv: SimKv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()
    ) -> tuple[Array, ...]:
        hidden = [step(kv, each) for each in ids]
        return tuple(np.stack([each[layer] for each in hidden]) for layer in aux_layers)

    def read(self, kv: SimKv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()) -> Rows:
        return self.forward(kv, ids, want_logits=True, aux_layers=aux_layers)

    def restore(self, kv: SimKv, banks: Sequence[Bank]) -> None:
        evicted = evicted_of(kv.plan)
        assert kv.length == kv.plan.prompt_len - 1
        assert [bank.layer for bank in banks] == (list(range(NUM_LAYERS)) if evicted else [])
        for bank in banks:
            kv.keys[bank.layer, evicted] = bank.k[:, 0]
            kv.values[bank.layer, evicted] = bank.v[:, 0]

    def forward(
        self,
        kv: SimKv,
        ids: Sequence[int],
        *,
        want_logits: bool = False,
        aux_layers: Sequence[int] = (),
    ) -> Rows:
        start = kv.length
        kv.last_forward_len = len(ids)
        hidden = [step(kv, each) for each in ids]
        logits = np.stack([weights().head @ each[-1] for each in hidden])
        if self.blur and len(ids) > 1:
            logits += noise(start, len(ids)) * np.float32(0.99 * self.blur)
        top = np.partition(logits, -2, axis=1)[:, -2:]
        return Rows(
            ids=tuple(int(each) for each in np.argmax(logits, axis=1)),
            margins=tuple(float(each) for each in top[:, 1] - top[:, 0]),
            logits=logits if want_logits else None,
            aux=tuple(np.stack([each[layer] for each in hidden]) for layer in aux_layers),
        )

    def rewind(self, kv: SimKv, plan: KvPlan, length: int, *, keep: bool) -> SimKv:
        assert 0 < length <= kv.rewindable_len
        begun = self.open(plan)
        begun.keys[:, :length] = kv.keys[:, :length]
        begun.values[:, :length] = kv.values[:, :length]
        begun.length = length
        if not keep:
            kv.keys[:] = kv.values[:] = np.float32(1e3)
        return begun

    def trim(self, kv: SimKv, length: int) -> None:
        assert kv.length - kv.last_forward_len <= length <= kv.length
        kv.length = length


def step(kv: SimKv, token_id: int) -> list[Array]:
    """Append one token; the outputs of the layers at its position."""
    w, position = weights(), kv.length
    x = w.embedding[token_id]
    outputs = []
    seen = kept(kv.plan, position)
    age = np.float32(position) - seen.astype(np.float32)
    for i, layer in enumerate(w.layers):
        query_key = layer.query_key @ x
        kv.keys[i, position] = query_key[HIDDEN_SIZE:]
        kv.values[i, position] = layer.value @ x
        scores = kv.keys[i, seen] @ query_key[:HIDDEN_SIZE] * np.float32(0.25)
        shares = np.exp(scores - age * np.float32(layer.slope) - scores.max())
        x = x + (shares @ kv.values[i, seen]) / shares.sum()
        x = x + layer.down @ np.maximum(layer.up @ x, 0)
        x = x / np.float32(np.sqrt(np.mean(x * x) + 1e-6))
        outputs.append(x)
    kv.length = position + 1
    return outputs


def kept(plan: KvPlan, position: int) -> NDArray[np.int64]:
    """The positions that the row at `position` attends to."""
    every = np.arange(position + 1)
    if plan.mode == "full" or (plan.mode == "restored" and position < plan.prompt_len - 1):
        return every
    stays = (every < plan.sink) | (every > position - plan.window)
    if plan.mode == "restored":
        stays |= np.isin(every, evicted_of(plan))
    return every[stays]


def evicted_of(plan: KvPlan) -> list[int]:
    """The positions of the prompt whose K/V banks take the place of."""
    return list(range(plan.sink, max(plan.sink, plan.prompt_len - plan.window)))


def banks_of(rows: Array, evicted: Sequence[int]) -> list[tuple[Array, Array]]:
    """K and V of every layer, [evicted, HIDDEN_SIZE] each, made of the layers' outputs."""
    return [
        (rows[evicted, layer] * np.float32(0.5), rows[evicted, layer] * np.float32(-0.25))
        for layer in range(NUM_LAYERS)
    ]


def noise(start: int, num_rows: int) -> Array:
    """[num_rows, VOCAB_SIZE] in [-1, 1], another for every place and length of a block."""
    seed = hashlib.sha256(f"{start}/{num_rows}".encode()).digest()[:8]
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))
    return rng.uniform(-1, 1, (num_rows, VOCAB_SIZE)).astype(np.float32)


def letter(token_id: int) -> str:
    return chr(0x4E00 + token_id)


class Letters:
    """A TextStream with a character a token."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(letter, ids))

    def flush(self) -> str:
        return ""


@dataclass(frozen=True)
class SimTokenizer:
    """As much of a tokenizer as a generation from prompt_ids asks for."""

    eos_ids: tuple[int, ...] = (EOS_ID,)
    vocab_size: int = VOCAB_SIZE
    template: None = None
    special_ids: frozenset[int] = frozenset({EOS_ID})

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return [1 + ord(each) % (VOCAB_SIZE - 1) for each in text]

    def stream(self) -> Letters:
        return Letters()
