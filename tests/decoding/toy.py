"""A verifier small enough to know by heart: the next logits are a table of the last two ids."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from kakeya.compute.device import Timed
from kakeya.config.verifying import VerifyingLimits
from kakeya.decoding import Block, Tally, decode, engine_of
from kakeya.decoding.failover import Circuits, Peers
from kakeya.decoding.loop import Engine
from kakeya.decoding.source import DraftFailedError, Place
from kakeya.errors import demand
from kakeya.verifying.demands import demand_room
from kakeya.verifying.verifier import Bank, Geometry, KvPlan, Rows

VOCAB_SIZE = 24
HIDDEN_SIZE = 8


@dataclass(slots=True, eq=False, weakref_slot=True)
class ToyKv:
    plan: KvPlan
    ids: list[int] = field(default_factory=list)
    last_forward_len: int = 0

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def resident_bytes(self) -> int:
        return 8 * self.plan.max_len

    @property
    def rewindable_len(self) -> int:
        return self.length


@dataclass(slots=True)
class ToyVerifier:
    """`drift`: how far batched logits may be off, in either direction, by row and position.

    nan_rows: tells for (position, number of rows) whether the logits there are not finite.
    """

    table: np.ndarray
    drift: float = 0.0
    margin_bound: float = 0.0
    nan_rows: Callable[[int, int], bool] = lambda position, num_rows: False
    max_context_len: int = 4096
    prefill_chunk_len: int = 4
    model_id: str = "toy"
    dtype: str = "float32"
    forwards: list[int] = field(default_factory=list)
    prefills: list[int] = field(default_factory=list)
    plans: list[KvPlan] = field(default_factory=list)
    restored: list[tuple[Bank, ...]] = field(default_factory=list)
    rewinds: list[tuple[int, bool]] = field(default_factory=list)
    max_kv_len: int = 1 << 30
    max_kv_bytes: int = 1 << 50
    alive: weakref.WeakSet[ToyKv] = field(default_factory=weakref.WeakSet)

    @property
    def geometry(self) -> Geometry:
        return Geometry(
            VOCAB_SIZE, HIDDEN_SIZE, 1, 1, 8, self.max_context_len, ("full_attention",), None
        )

    def open(self, plan: KvPlan) -> ToyKv:
        demand(plan.max_len <= self.max_kv_len, "RESOURCE_EXHAUSTED", "the K/V takes too much")
        self._demand_room(plan, held=list(self.alive))
        self.plans.append(plan)
        kv = ToyKv(plan)
        self.alive.add(kv)
        return kv

    def rewind(self, kv: ToyKv, plan: KvPlan, length: int, *, keep: bool) -> ToyKv:
        assert length <= kv.length
        self._demand_room(plan, held=[each for each in self.alive if keep or each is not kv])
        self.rewinds.append((length, keep))
        begun = ToyKv(plan, kv.ids[:length])
        if not keep:
            kv.ids.clear()
            self.alive.discard(kv)
        self.alive.add(begun)
        return begun

    def _demand_room(self, plan: KvPlan, held: Sequence[ToyKv]) -> None:
        held_bytes = sum(each.resident_bytes for each in held)
        limits = VerifyingLimits(max_kv_bytes=self.max_kv_bytes)
        demand_room(8 * plan.max_len, held_bytes=held_bytes, limits=limits)

    def prefill(
        self, kv: ToyKv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()
    ) -> tuple[np.ndarray, ...]:
        start = kv.length
        self.prefills.append(len(ids))
        self._append(kv, ids)
        return self._aux(kv, start, aux_layers)

    def read(self, kv: ToyKv, ids: Sequence[int], *, aux_layers: Sequence[int] = ()) -> Rows:
        rows = self.forward(kv, ids, want_logits=True, aux_layers=aux_layers)
        self.prefills.append(self.forwards.pop())
        return rows

    def forward(
        self,
        kv: ToyKv,
        ids: Sequence[int],
        *,
        want_logits: bool = False,
        aux_layers: Sequence[int] = (),
    ) -> Rows:
        start = kv.length
        self.forwards.append(len(ids))
        self._append(kv, ids)
        logits = np.stack([self._row(kv.ids, start + i, len(ids)) for i in range(len(ids))])
        ordered = np.sort(logits, axis=1)
        return Rows(
            ids=tuple(int(each) for each in np.argmax(logits, axis=1)),
            margins=tuple(float(each) for each in ordered[:, -1] - ordered[:, -2]),
            logits=logits if want_logits else None,
            aux=self._aux(kv, start, aux_layers),
            has_nan=any(self.nan_rows(start + i, len(ids)) for i in range(len(ids))),
        )

    def restore(self, kv: ToyKv, banks: Sequence[Bank]) -> None:
        self.restored.append(tuple(banks))

    def trim(self, kv: ToyKv, length: int) -> None:
        assert kv.length - kv.last_forward_len <= length <= kv.length
        kv.last_forward_len -= kv.length - length
        del kv.ids[length:]

    def _append(self, kv: ToyKv, ids: Sequence[int]) -> None:
        assert all(0 <= each < VOCAB_SIZE for each in ids), "an unknown id reached the verifier"
        kv.ids.extend(ids)
        kv.last_forward_len = len(ids)

    def _aux(self, kv: ToyKv, start: int, layers: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Row i of layer l holds the id at its position, plus l: whoever reads it can decode."""
        ids = np.array(kv.ids[start:], dtype=np.float32)[:, None]
        return tuple(np.repeat(ids + layer, HIDDEN_SIZE, axis=1) for layer in layers)

    def _row(self, ids: Sequence[int], position: int, num_rows: int) -> np.ndarray:
        before = ids[position - 1] if position else 0
        row = self.table[before, ids[position]].copy()
        if num_rows > 1 and self.drift:
            noise = np.random.default_rng((position, num_rows)).uniform(-1, 1, VOCAB_SIZE)
            row += (noise * self.drift).astype(np.float32)
        return row


def rough_table(seed: int) -> np.ndarray:
    """[V, V, V] float32 logits, spread by about 1: near ties are rare."""
    shape = (VOCAB_SIZE,) * 3
    table = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    each = np.arange(VOCAB_SIZE)
    table[:, each, each] = -9  # no id follows itself, so texts take longer to run in circles
    return table


def tied_table(seed: int) -> np.ndarray:
    """The best ids of every row tie exactly, or by one unit in the last place."""
    table = rough_table(seed)
    table[..., 9] = table[..., 4] = np.maximum(table[..., 4], 2.0)
    table[..., 13] = np.nextafter(table[..., 4], np.float32(9))
    table[::2, :, 13] = -5
    table[..., 17] = np.nextafter(table[..., 4], np.float32(-9))
    # Otherwise the ties would only ever lead to themselves.
    table[:, ::3] = rough_table(seed + 1)[:, ::3]
    return table


def run_after(ids: Sequence[int], table: np.ndarray, num_ids: int) -> list[int]:
    """The greedy continuation, by the definition."""
    seen = [0, *ids]
    for _ in range(num_ids):
        seen.append(int(np.argmax(table[seen[-2], seen[-1]])))
    return seen[1 + len(ids) :]


class PacedDevice:
    """Jobs cost mock time by the rows they verify: `step_s(block_len)`; anything else is free."""

    def __init__(self, step_s: Callable[[int], float]) -> None:
        self.step_s = step_s
        # What every other job costs.
        self.job_s = 0.0
        self.num_jobs = 0
        self.busy_s = 0.0
        self._turn = trio.Lock()

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return (await self.timed(fn, *args)).result

    async def timed(self, fn: Callable[..., Any], *args: Any) -> Timed[Any]:
        async with self._turn:
            self.num_jobs += 1
            block_len = {"verify_block": lambda: 1 + len(args[3]), "decide_one": lambda: 1}
            rows = block_len.get(fn.__name__, lambda: 0)()
            job_s = self.step_s(rows) if rows else self.job_s
            with trio.CancelScope(shield=True):
                await trio.sleep(job_s)
            self.busy_s += job_s
            return Timed(fn(*args), job_s)


def cpu_step_s(block_len: int) -> float:
    """The shape measured on two CPU cores: 75 ms, and little more up to four rows."""
    return 0.075 * (1 + 0.06 * (block_len - 1))


@dataclass(slots=True)
class FakeSource:
    """A proposer that answers `answer(committed, num_drafts)` after `trip_s`."""

    place: Place
    answer: Callable[[Sequence[int], int], Sequence[int]]
    trip_s: Callable[[], float] = lambda: 0.002
    asked: list[int] = field(default_factory=list)

    async def draft(self, committed_ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        self.asked.append(num_drafts)
        await trio.sleep(self.trip_s())
        return tuple(self.answer(committed_ids, num_drafts))


def failing(reason: str) -> Callable[[Sequence[int], int], Sequence[int]]:
    def answer(committed: Sequence[int], num_drafts: int) -> Sequence[int]:
        raise DraftFailedError(reason, "as the test wants it")

    return answer


def peers_of(engine: Engine, *sources: FakeSource) -> Peers:
    known = {source.place: source for source in sources}
    return Peers(lambda: tuple(known), lambda place: known[place], Circuits(engine.limits))


def engine_for(
    verifier: ToyVerifier,
    step_s: Callable[[int], float] = cpu_step_s,
    *,
    kept_prefixes: int = 0,
) -> Engine:
    device: Any = PacedDevice(step_s)
    return engine_of(verifier, device, kept_prefixes=kept_prefixes, node_id="here")


@dataclass(slots=True)
class Outcome:
    ids: list[int] = field(default_factory=list)
    text: str = ""
    blocks: list[Block] = field(default_factory=list)
    finish_reason: str = ""
    elapsed_s: float = 0.0

    @property
    def tally(self) -> Tally:
        tally = self.blocks[-1].tally
        assert tally is not None
        return tally

    def drafted_on(self) -> set[str]:
        return {block.drafted_on for block in self.blocks if block.num_drafts}


async def run(
    engine: Engine, prompt_ids: Sequence[int], peers: Peers | None = None, **options: Any
) -> Outcome:
    outcome = Outcome()
    started_s = trio.current_time()
    async for block in decode(engine, prompt_ids, peers, **options):
        outcome.blocks.append(block)
        outcome.ids.extend(block.ids)
        outcome.text += block.text
        outcome.finish_reason = block.finish_reason
    outcome.elapsed_s = trio.current_time() - started_s
    return outcome


async def plain_run(
    table: np.ndarray, prompt_ids: Sequence[int], *, max_tokens: int, **options: Any
) -> Outcome:
    """The same verifier alone, with exact logits."""
    engine = engine_for(ToyVerifier(table))
    return await run(engine, prompt_ids, max_tokens=max_tokens, plain=True, **options)
