"""The speculative loop on host A: the ids of the verifier alone, only sooner.

bonus → drafts → one forward pass over [bonus, *drafts] → accept → trim → hand out.  Whatever a
proposer does can cost time only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import trio

from kakeya.compute.device import Device
from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.aux_log import AuxLog
from kakeya.decoding.block import Account, Block, FinishReason
from kakeya.decoding.drafting import Drafted, Drafter
from kakeya.decoding.failover import Peers
from kakeya.decoding.keeper import Course
from kakeya.decoding.kept_prefixes import Begun, KeptPrefixes
from kakeya.decoding.policy import Ledger, Pace, Round
from kakeya.decoding.reading import Reading
from kakeya.decoding.sampler import Sampler, sampler_of
from kakeya.decoding.sampling import GREEDY, Sampling, Score
from kakeya.decoding.sampling import demand_sound as demand_sound_sampling
from kakeya.decoding.session import Turn
from kakeya.decoding.source import BlockSource, LocalNgram
from kakeya.decoding.text import Cutter, NoText, Released, TextStream
from kakeya.decoding.verify import Aux, Verified, decide_one, one_by_one, prefill, verify_block
from kakeya.errors import demand
from kakeya.verifying.banks import demand_fit
from kakeya.verifying.verifier import Bank, Geometry, Kv, KvPlan, Verifier
from kakeya.verifying.window import needs_banks

T = TypeVar("T")
Exactness = Literal["guarded", "strict"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A verifier, its device, what was learnt of its speed, what it has read; for all generations.

    node_id: this host's, for blocks its own n-gram drafted.  now: the loop's clock (s).
    """

    verifier: Verifier
    device: Device
    pace: Pace
    limits: DecodingLimits
    prefixes: KeptPrefixes
    node_id: str = "local"
    now: Callable[[], float] = trio.current_time


def engine_of(
    verifier: Verifier,
    device: Device,
    *,
    limits: DecodingLimits | None = None,
    kept_prefixes: int = 0,
    node_id: str = "local",
    now: Callable[[], float] = trio.current_time,
) -> Engine:
    """An engine that has measured nothing yet, and keeps the K/V of so many prompts."""
    chosen = limits or DecodingLimits()
    prefixes = KeptPrefixes(max_kept=kept_prefixes)
    return Engine(verifier, device, Pace(chosen), chosen, prefixes, node_id, now)


async def decode(
    engine: Engine,
    prompt_ids: Sequence[int],
    peers: Peers | None = None,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    stops: Sequence[str] = (),
    text: TextStream | None = None,
    sampling: Sampling = GREEDY,
    num_top: int | None = None,
    scores_prompt: bool = False,
    plan: KvPlan | None = None,
    num_drafts: int | None = None,
    draft_on: str = "auto",
    proposer: str = "",
    plain: bool = False,
    exact: Exactness = "guarded",
) -> AsyncGenerator[Block, None]:
    """Blocks of what follows `prompt_ids`; the last one has a finish_reason and the tally.

    max_tokens: at most so many ids; fewer where the context ends ("length") or a stop comes
    ("stop").  An id of `stop_ids` is handed out as the last one, without text; a string of
    `stops` is cut off.  plan: None keeps the K/V of every position.  num_drafts: None lets the
    policy choose, 0 is plain.  num_top: blocks carry the scores of their ids and of so many
    alternatives; None: no scores.  scores_prompt: the first block carries those of the prompt's
    ids.  draft_on: auto, local, remote or a node_id.  exact "strict"
    commits by one-token passes only.

    Raises Refused: INVALID_ARGUMENT before any work, INTERNAL when the verifier's logits are not
    finite, RESOURCE_EXHAUSTED when there is no room.  Close it (contextlib.aclosing) when leaving
    early.
    """
    asked = _Asked(prompt_ids, max_tokens, stops, sampling, num_drafts, exact)
    max_len = _max_len(engine, plan)
    _demand_sound(asked, engine, max_len, has_text=text is not None)
    chosen_plan = plan or KvPlan("full", 0, 0, min(max_len, len(prompt_ids) + max_tokens))
    is_restored = chosen_plan.mode == "restored"
    drafter = _drafter(engine, asked, None if plain and not is_restored else peers, draft_on)
    drafter.proposer = proposer
    drafter.follow(_course(engine, drafter, chosen_plan))
    generation = _Generation(
        engine=engine,
        drafter=drafter,
        sampler=sampler_of(sampling, prompt_ids, engine.verifier.geometry.vocab_size, num_top),
        drafts_allowed=not plain and num_drafts != 0,
        wants_banks=_needs_banks(chosen_plan, engine.verifier.geometry),
        reading=Reading(prompt_ids, num_top if scores_prompt else None),
        plan=chosen_plan,
        exact=exact,
        remaining=min(max_tokens, max_len - len(prompt_ids)),
        stop_ids=frozenset(stop_ids),
        text=text or NoText(),
        cutter=Cutter(tuple(stops)),
    )
    # What has to be scored has to be read.
    known = () if generation.reading.is_scored else prompt_ids
    begun = await engine.prefixes.begin(engine.verifier, engine.device, known, chosen_plan)
    try:
        await generation.prefill(begun)
        while True:
            block = await generation.next_block(begun.kv)
            yield block
            if block.finish_reason:
                return
    except Exception:
        generation.whole_len = 0  # who knows what is in it
        raise
    finally:
        drafter.release()
        generation.leave(begun.kv)


@dataclass(frozen=True, slots=True)
class _Asked:
    prompt_ids: Sequence[int]
    max_tokens: int
    stops: Sequence[str]
    sampling: Sampling
    num_drafts: int | None
    exact: str


def _max_len(engine: Engine, plan: KvPlan | None) -> int:
    most = engine.verifier.geometry.max_context_len
    return most if plan is None else min(most, plan.max_len)


def _demand_sound(asked: _Asked, engine: Engine, max_len: int, *, has_text: bool) -> None:
    limits, vocab_size = engine.limits, engine.verifier.geometry.vocab_size
    prompt_len, longest = len(asked.prompt_ids), max((len(each) for each in asked.stops), default=1)
    strange = [each for each in asked.prompt_ids if not 0 <= each < vocab_size][:1]
    most = limits.max_num_drafts
    for holds, why in (
        (prompt_len >= 1, "the prompt is empty"),
        (asked.max_tokens >= 1, f"max_tokens is {asked.max_tokens}, it must be at least 1"),
        (
            prompt_len < max_len,
            f"the prompt has {prompt_len} tokens, the context holds {max_len} with the answer",
        ),
        (not strange, f"token id {strange[:1]} of the prompt is not below {vocab_size}"),
        (
            len(asked.stops) <= limits.max_stops,
            f"{len(asked.stops)} stop strings, at most {limits.max_stops} are allowed",
        ),
        (
            min((len(each) for each in asked.stops), default=1) >= 1
            and longest <= limits.max_stop_len,
            f"a stop string must have 1 to {limits.max_stop_len} characters",
        ),
        (has_text or not asked.stops, "stop strings need a text stream"),
        (
            asked.num_drafts is None or 0 <= asked.num_drafts <= most,
            f"num_drafts is {asked.num_drafts}, it must be at least 0 and at most {most}",
        ),
        (asked.exact in ("guarded", "strict"), f"exact is {asked.exact!r}: guarded or strict"),
    ):
        demand(holds, "INVALID_ARGUMENT", why)
    demand_sound_sampling(asked.sampling, vocab_size)


def _drafter(engine: Engine, asked: _Asked, peers: Peers | None, draft_on: str) -> Drafter:
    return Drafter(
        local=LocalNgram(engine.node_id),
        peers=peers,
        draft_on=draft_on or "auto",
        num_drafts=asked.num_drafts,
        vocab_size=engine.verifier.geometry.vocab_size,
        pace=engine.pace,
        account=Account(len(asked.prompt_ids)),
        limits=engine.limits,
        now=engine.now,
        committed_ids=list(asked.prompt_ids),
        ledger=Ledger(engine.limits),
    )


def _course(engine: Engine, drafter: Drafter, plan: KvPlan) -> Course:
    """What the generation's sessions on drafters are opened and seeded from."""
    prompt_ids = tuple(drafter.committed_ids)
    kept = KvPlan("full", 0, 0, plan.max_len) if plan.mode == "restored" else plan

    async def recall(end: int, layers: Sequence[int]) -> AsyncGenerator[Aux, None]:
        verifier, device = engine.verifier, engine.device
        # Nothing is known of its rows: all of it is read again.
        kv = (await engine.prefixes.begin(verifier, device, (), kept)).kv
        for start in range(0, end, verifier.prefill_chunk_len):
            stop = min(start + verifier.prefill_chunk_len, end)
            chunk = tuple(drafter.committed_ids[start:stop])
            yield await device.run(prefill, verifier, kv, chunk, tuple(layers))

    wants = _needs_banks(plan, engine.verifier.geometry)
    return Course(
        prompt_ids=prompt_ids,
        aux=AuxLog(max_bytes=engine.limits.max_aux_bytes),
        dtype="bfloat16" if engine.verifier.dtype == "bfloat16" else "float32",
        recall=recall,
        kv=Turn(prompt_ids, plan.sink, plan.window, plan.exact_full_layers) if wants else None,
    )


def _needs_banks(plan: KvPlan, geometry: Geometry) -> bool:
    """Whether some layer could attend to what this plan evicts."""
    slides = {
        geometry.sliding_window if each == "sliding_attention" else None
        for each in geometry.layer_types
    }
    return plan.mode == "restored" and any(needs_banks(plan, slide) for slide in slides)


@dataclass(slots=True)
class _Generation:
    engine: Engine
    drafter: Drafter
    sampler: Sampler
    drafts_allowed: bool
    wants_banks: bool
    reading: Reading
    plan: KvPlan
    exact: str
    remaining: int
    stop_ids: frozenset[int]
    text: TextStream
    cutter: Cutter
    # Of ids that are held back with them.
    held_scores: list[Score] = field(default_factory=list)
    job_s: float = 0.0  # the device's work for the last block
    whole_len: int = 0  # positions that whole prefill chunks wrote

    async def prefill(self, begun: Begun) -> None:
        """All of the prompt but its last id, which is the first bonus; a job a chunk.

        The n-gram index grows beside it, chunk by chunk: all at once would hold up the loop.
        """
        started_s, kv = self.engine.now(), begun.kv
        ids, chunk_len = self.drafter.committed_ids, self.engine.verifier.prefill_chunk_len
        self.drafter.account.cached_len = self.whole_len = begun.cached_len
        if begun.cached_len:
            self.drafter.resume(begun.cached_len, begun.aux)
        for start in range(0, len(ids) - 1, chunk_len):
            chunk = tuple(ids[start : min(start + chunk_len, len(ids) - 1)])
            self.drafter.local.commit(chunk)
            if start < begun.cached_len:
                await trio.lowlevel.checkpoint()
                continue
            aux = await self._beside_probes(lambda chunk=chunk: self._read(kv, chunk))  # type: ignore[misc]
            self.drafter.note_read(len(chunk), aux)
            self.whole_len += len(chunk) == chunk_len and chunk_len
        if self.plan.mode == "restored":
            await self._restore(kv)
            self.wants_banks = False
        self.drafter.local.commit(ids[-1:])
        self.drafter.account.prefill_s = self.engine.now() - started_s

    def leave(self, kv: Kv) -> None:
        """Leave to later texts what this one's prefill read; no job is at work on `kv`."""
        course, engine = self.drafter.course, self.engine
        engine.prefixes.keep(
            self.drafter.committed_ids,
            kv,
            course.aux if course is not None else None,
            read_len=self.whole_len,
            chunk_len=engine.verifier.prefill_chunk_len,
        )

    async def _read(self, kv: Kv, chunk: tuple[int, ...]) -> Aux:
        verifier, taps = self.engine.verifier, self.drafter.aux_layers
        return await self.reading.chunk(self.engine.device, verifier, kv, chunk, taps)

    async def _restore(self, kv: Kv) -> None:
        """Evict the middle of the prompt for the banks of a drafter's f_θ."""
        verifier = self.engine.verifier
        banks: Sequence[Bank] = ()
        if self.wants_banks:
            banks = await self.drafter.banks(
                lambda banks: demand_fit(banks, self.plan, verifier.geometry, length=kv.length)
            )
        if not self.drafts_allowed:
            self.drafter.release()
        await self.engine.device.run(verifier.restore, kv, banks)

    async def next_block(self, kv: Kv) -> Block:
        account, now = self.drafter.account, self.engine.now
        device = self.engine.device
        started_s, busy_s = now(), device.busy_s
        drafted = await self._draft()
        drafted_s, busy_before_s = now(), device.busy_s
        verified = await self._beside_probes(lambda: self._verify(kv, drafted.ids))
        verify_s = now() - drafted_s
        step = Round(verify_s, self.job_s, device.busy_s - busy_before_s - self.job_s)
        whole = Round(now() - started_s, self.job_s, device.busy_s - busy_s - self.job_s)
        self._learn(drafted, verified, step, whole)
        kept, by_id = _cut(verified.ids, self.stop_ids, self.remaining)
        self.remaining -= len(kept)
        self.held_scores.extend(verified.scores[: len(kept)])
        released, reason = self._release(kept, is_stopped=by_id)
        num_accepted = min(verified.num_accepted, len(kept))
        account.num_blocks += 1
        account.num_ids += len(released.ids)
        account.margin_rechecks += verified.margin_rechecks
        account.nan_rechecks += verified.nan_rechecks
        account.draft_s += drafted_s - started_s
        account.verify_s += verify_s
        account.drafts.add(len(drafted.ids), num_accepted)
        round_s = now() - started_s
        account.round_s += round_s
        place = drafted.kind[0] if drafted.kind is not None and drafted.ids else None
        return Block(
            ids=released.ids,
            text=released.text,
            num_drafts=len(drafted.ids),
            num_accepted=num_accepted,
            proposer=place.model_id if place else "",
            drafted_on=place.node_id if place else "",
            draft_s=drafted_s - started_s,
            verify_s=verify_s,
            overhead_s=max(0.0, round_s - (drafted_s - started_s) - verify_s),
            may_draft=self.drafts_allowed and self.drafter.ledger.is_on,
            finish_reason=reason,
            tally=account.tally() if reason else None,
            scores=self._released_scores(len(released.ids)),
            prompt_scores=self.reading.taken(),
        )

    def _released_scores(self, num_ids: int) -> tuple[Score, ...]:
        released, self.held_scores = self.held_scores[:num_ids], self.held_scores[num_ids:]
        return tuple(released)

    async def _draft(self) -> Drafted:
        # A block of n drafts commits up to n + 1 ids.
        most = self.remaining - 1
        if not self.drafts_allowed or most < 1:
            return Drafted()
        return await self.drafter.draft(most)

    async def _verify(self, kv: Kv, drafts: tuple[int, ...]) -> Verified:
        device, verifier = self.engine.device, self.engine.verifier
        bonus, taps = self.drafter.committed_ids[-1], self.drafter.aux_layers
        if self.exact != "strict":
            done = await device.timed(verify_block, verifier, kv, bonus, drafts, self.sampler, taps)
            self.job_s = done.job_s
            return done.result
        own: list[Verified] = []
        for draft in (*drafts, None):
            ids = tuple(each.ids[0] for each in own)
            fed = ids[-1] if ids else bonus
            one = await device.timed(decide_one, verifier, kv, fed, self.sampler, ids, taps)
            self.job_s = one.job_s if not own else self.job_s + one.job_s
            own.append(one.result)
            if own[-1].ids[0] != draft:
                break
        return one_by_one(own, num_drafts=len(drafts))

    def _learn(self, drafted: Drafted, verified: Verified, step: Round, whole: Round) -> None:
        drafter, pace = self.drafter, self.engine.pace
        pace.add_round(whole)
        if not verified.margin_rechecks and not verified.nan_rechecks:
            pace.add(1 + len(drafted.ids), step.own_s)
        drafter.learn(drafted, num_decided=verified.num_decided, num_accepted=verified.num_accepted)
        drafter.judge(drafted, num_ids=len(verified.ids), elapsed_s=whole.own_s)
        drafter.commit(verified.ids)
        drafter.note_read(len(verified.ids), verified.aux)
        self.sampler.commit(verified.ids)

    def _release(self, kept: Sequence[int], *, is_stopped: bool) -> tuple[Released, FinishReason]:
        ids: list[int] = []
        parts: list[str] = []
        for i, each in enumerate(kept):
            is_stop_id = is_stopped and i == len(kept) - 1
            piece = self.cutter.push(each, "" if is_stop_id else self.text.push((each,)))
            ids.extend(piece.ids)
            parts.append(piece.text)
            if piece.is_stopped:
                return Released(tuple(ids), "".join(parts)), "stop"
        if not is_stopped and self.remaining > 0:
            return Released(tuple(ids), "".join(parts)), ""
        last = self.cutter.end(self.text.flush())
        reason: FinishReason = "stop" if is_stopped or last.is_stopped else "length"
        return Released((*ids, *last.ids), "".join([*parts, last.text])), reason

    async def _beside_probes(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work`; probe the peers that are due meanwhile, for as long as it takes."""
        due = self.drafter.standing().due if self.drafts_allowed or self.wants_banks else ()
        due = due if self.drafts_allowed else ()
        return await _beside(work, self.drafter.probe, due)


def _cut(
    ids: Sequence[int], stop_ids: Collection[int], remaining: int
) -> tuple[tuple[int, ...], bool]:
    """The ids up to and with the first stop id, at most `remaining`; whether it ends in one."""
    for i, each in enumerate(ids[:remaining]):
        if each in stop_ids:
            return tuple(ids[: i + 1]), True
    return tuple(ids[:remaining]), False


async def _beside(
    work: Callable[[], Awaitable[T]],
    probe: Callable[[BlockSource], Awaitable[None]],
    due: Sequence[BlockSource],
) -> T:
    if not due:
        return await work()
    result: list[T] = []
    error: Exception | None = None
    async with trio.open_nursery() as nursery:
        for source in due:
            nursery.start_soon(probe, source)
        try:
            result.append(await work())
        except Exception as raised:  # noqa: BLE001 - raised again below, out of the nursery's group
            error = raised
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return result[0]


__all__ = ["Engine", "Exactness", "decode", "engine_of"]
