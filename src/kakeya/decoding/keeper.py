"""Holds sessions on other nodes' drafters: opened, seeded and caught up beside the loop.

A generation asks for a session and goes on at once; a task here restores and seeds it from the
generation's aux, and the generation drafts on it once it is live.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.aux_log import AuxLog
from kakeya.decoding.session import DflashStub, RemoteSession, Turn, pieces, remote_session
from kakeya.decoding.source import DflashFit, DraftFailedError, Place
from kakeya.decoding.verify import Aux
from kakeya.errors import demand
from kakeya.supervision import TaskHome
from kakeya.verifying.verifier import Bank

log = structlog.get_logger(__name__)

# Computes the aux of positions [0, end) again, piece by piece in their order.
Recall = Callable[[int, Sequence[int]], AsyncGenerator[Aux, None]]


@dataclass(frozen=True, slots=True)
class Course:
    """What a generation hands over with its first session: its prompt, aux and how to redo them.

    dtype: of the aux.  kv: what Restore is asked for when banks are wanted, else None.
    """

    prompt_ids: tuple[int, ...]
    aux: AuxLog
    dtype: str
    recall: Recall
    kv: Turn | None = None


@dataclass(eq=False, slots=True)
class HeldSession:
    """One generation's session at one place; made by Keeper.hold."""

    place: Place
    course: Course
    limits: DecodingLimits
    is_live: bool = False
    failure: DraftFailedError | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _session: RemoteSession | None = None
    _turn: trio.Lock = field(default_factory=trio.Lock)
    _wanted: trio.Event = field(default_factory=trio.Event)
    _restored: trio.Event = field(default_factory=trio.Event)
    _banks: tuple[Bank, ...] | None = None

    @property
    def fit(self) -> DflashFit:
        assert self.place.dflash is not None
        return self.place.dflash

    async def draft(self, committed_ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        """Drafts behind `committed_ids`, whose last id has no aux yet.  Raises DraftFailedError."""
        self._demand_usable()
        session, aux = self._session, self.course.aux
        assert session is not None
        assert aux.end == len(committed_ids) - 1, (aux.end, len(committed_ids))
        async with self._turn:
            # Rows were perhaps on their way when this began, and lost.
            self._demand_usable()
            first = session.context_len
            rows = self._rows(first, aux.end) if first < aux.end else None
            try:
                return await session.draft(committed_ids[-1], num_drafts, rows)
            finally:
                if not session.is_certain:
                    self.is_live = False
                    self.look()

    def _demand_usable(self) -> None:
        session = self._session
        if session is None or not session.is_certain or not self.is_usable:
            raise self.failure or DraftFailedError("unseeded", "the session is not seeded yet")

    def look(self) -> None:
        """Have the session's task look whether there is something to send."""
        self._wanted.set()

    def grew(self) -> None:
        """The generation's aux has grown."""
        if not self.is_usable:
            self.look()

    @property
    def is_usable(self) -> bool:
        """Seeded, and not so far behind that a draft would carry a long message."""
        session = self._session
        if session is None or not self.is_live:
            return False
        return self.course.aux.end - session.context_len <= self.limits.max_lag_len

    @property
    def least_trip_s(self) -> float:
        """A draft takes about this long at least (s)."""
        return self._session.least_trip_s if self._session is not None else 0.0

    async def banks(self) -> tuple[Bank, ...]:
        """The prompt's banks, made once all of it but its last id is seeded.

        Raises DraftFailedError.
        """
        await self._restored.wait()
        if self._banks is None:
            raise self.failure or DraftFailedError("cancelled", "the session was released")
        return self._banks

    def release(self) -> None:
        """End it: the session is closed on the peer, in the background."""
        self.is_live = False
        self.scope.cancel()

    async def drive(self, stub: DflashStub, session_id: str) -> None:
        """Restore, seed, keep up; ends when released.  Raises DraftFailedError."""
        prompt_ids = self.course.prompt_ids
        nothing_evicted = Turn(prompt_ids, sink=0, window=len(prompt_ids))
        async with remote_session(
            self.place,
            stub,
            session_id=session_id,
            dtype=self.course.dtype,
            limits=self.limits,
        ) as session:
            await session.restore(nothing_evicted)
            self._session = session
            if self.course.kv is not None:
                await self._restore(session, self.course.kv)
            while True:
                await self._catch_up(session)
                await self._asked_to_look()

    def ended(self, failure: DraftFailedError | None) -> None:
        """Nothing will be drafted here any more."""
        self.is_live = False
        self.failure = failure
        self._restored.set()

    async def _restore(self, session: RemoteSession, turn: Turn) -> None:
        """Banks come of the whole prompt's context, fed in pieces that do not depend on time."""
        while self.course.aux.end < len(self.course.prompt_ids) - 1:
            await self._asked_to_look()
        await self._catch_up(session)
        self._banks = await session.restore(turn)
        self._restored.set()

    async def _asked_to_look(self) -> None:
        await self._wanted.wait()
        self._wanted = trio.Event()

    async def _catch_up(self, session: RemoteSession) -> None:
        aux = self.course.aux
        async with self._turn:
            if session.context_len < aux.first:
                await self._recall(session)
            end = session.unconfirmed_end
            if end is not None:
                await session.feed(self._rows(session.context_len, end))
            while session.context_len < aux.end:
                # The log may grow meanwhile.
                for piece in pieces(session.context_len, aux.end, self._piece_len):
                    await self._feed(session, self._rows(piece.start, piece.stop))
            self.is_live = aux.end > 0

    async def _recall(self, session: RemoteSession) -> None:
        """Feed what the log has dropped, computed again."""
        at = 0
        async with aclosing(self.course.recall(self.course.aux.first, self.fit.aux_layers)) as rows:
            async for piece in rows:
                begin, at = at, at + len(piece[0])
                if at > session.context_len:
                    skip = session.context_len - begin
                    await self._feed(session, tuple(layer[max(skip, 0) :] for layer in piece))

    async def _feed(self, session: RemoteSession, rows: Aux) -> None:
        """A context is seeded with positions of the prompt; what was said since extends it."""
        if not session.context_len:
            prompt_len = len(self.course.prompt_ids)
            await session.feed(tuple(layer[:prompt_len] for layer in rows))
            rows = tuple(layer[prompt_len:] for layer in rows)
        if len(rows[0]):
            await session.feed(rows)

    def _rows(self, first: int, end: int) -> Aux:
        return self.course.aux.rows(first, end, self.fit.aux_layers)

    @property
    def _piece_len(self) -> int:
        one = self._rows(self.course.aux.first, self.course.aux.first + 1)
        return max(1, self.limits.max_aux_message_bytes // sum(layer.nbytes for layer in one))


class Keeper:
    """The sessions of one node; `serve` runs as long as it generates."""

    def __init__(
        self,
        *,
        open_stub: Callable[[Place], DflashStub],
        limits: DecodingLimits,
        rng: random.Random,
    ) -> None:
        self._open_stub = open_stub
        self._limits = limits
        self._rng = rng
        self._home = TaskHome()
        self._num_held = 0

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the sessions' tasks until cancelled."""
        await self._home.serve(task_status)

    def hold(self, place: Place, course: Course) -> HeldSession:
        """Begin to open a session at `place`, whose drafter fits; never waits.

        Raises Refused(UNAVAILABLE) while not served, RESOURCE_EXHAUSTED beyond the cap.
        """
        demand(self._home.nursery is not None, "UNAVAILABLE", "this node is stopping")
        demand(
            self._num_held < self._limits.max_held_sessions,
            "RESOURCE_EXHAUSTED",
            f"{self._num_held} sessions are held, the limit is {self._limits.max_held_sessions}",
        )
        held = HeldSession(place, course, self._limits)
        self._num_held += 1
        assert self._home.nursery is not None
        self._home.nursery.start_soon(self._contained, held)
        return held

    async def _contained(self, held: HeldSession) -> None:
        failure = DraftFailedError("cancelled", "the session was released")
        session_id = f"{self._rng.getrandbits(128):032x}"
        try:
            with held.scope:
                await held.drive(self._open_stub(held.place), session_id)
        except DraftFailedError as error:
            failure = error
        except Exception:
            # The top of a task of its own: a mistake of ours in it must not end the node.
            log.exception("a session failed on our own mistake", node_id=held.place.node_id)
            failure = DraftFailedError("internal", "a mistake of this node")
        finally:
            self._num_held -= 1
            held.ended(failure)


__all__ = ["Course", "HeldSession", "Keeper", "Recall"]
