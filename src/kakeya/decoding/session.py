"""A DFlash session on another node, from the side that drives it: an `async with` and its calls.

Host B's half is a machine (drafting/machine); this half only keeps count of what B confirmed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.config.wire import WireLimits
from kakeya.decoding.remote import as_draft_failures
from kakeya.decoding.source import DraftFailedError, Place
from kakeya.decoding.verify import Aux
from kakeya.errors import Refused
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.verifying.verifier import Bank
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import TensorView, WireArray, decode, viewed

log = structlog.get_logger(__name__)

# Read without a copy where the channels have a reader for it (wire/bulk).
Restored = pb.RestoreResponse | bulk.RestoreResponse


class DflashStub(Protocol):
    """DFlashProposerServiceStub, the node's own service, or what stands in for it in tests."""

    async def Restore(self, message: pb.RestoreRequest) -> Restored: ...  # noqa: N802
    async def SeedContext(  # noqa: N802
        self, message: bulk.SeedContextRequest
    ) -> pb.SeedContextResponse: ...
    async def DraftBlock(  # noqa: N802
        self, message: pb.DraftBlockRequest
    ) -> pb.DraftBlockResponse: ...
    async def ExtendContext(  # noqa: N802
        self, message: bulk.ExtendContextRequest
    ) -> pb.ExtendContextResponse: ...
    async def CloseSession(  # noqa: N802
        self, message: pb.DFlashProposerServiceCloseSessionRequest
    ) -> pb.DFlashProposerServiceCloseSessionResponse: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What Restore is asked for; evicts nothing where the window holds all of the prompt."""

    prompt_ids: tuple[int, ...]
    sink: int
    window: int
    omits_full_layers: bool = False


class RemoteSession:
    """The calls of one session; made by `remote_session`.

    context_len: positions that B has confirmed.  Calls raise DraftFailedError; one that was
    cancelled or failed may have been served all the same: `is_certain` is False until the same
    rows were sent again.
    """

    def __init__(
        self, place: Place, stub: DflashStub, *, session_id: str, dtype: str, limits: DecodingLimits
    ) -> None:
        self.place = place
        self.context_len = 0
        self._stub = stub
        self._id = session_id
        self._dtype = dtype
        self._limits = limits
        self._prompt_ids: tuple[int, ...] = ()
        self._unconfirmed: int | None = None  # end of the rows whose reply is missing
        self._is_seeded = False
        # Peers we did not write may not wait for an ExtendContext that overtakes.
        self._pipelines = True
        # The shortest call so far (s): no draft comes back sooner than about this.
        self.least_trip_s = math.inf

    @property
    def is_certain(self) -> bool:
        return self._unconfirmed is None

    async def restore(self, turn: Turn) -> tuple[Bank, ...]:
        """Open the session, begin a new turn in it, or ask for this turn's banks again."""
        request = pb.RestoreRequest(
            session_id=self._id,
            prompt_ids=turn.prompt_ids,
            sink=turn.sink,
            window=turn.window,
            s5_exact_full_attn=turn.omits_full_layers,
            model_id=self.place.model_id,
        )
        with as_draft_failures(within_s=self._limits.restore_s):
            response = await self._stub.Restore(request)
        if response.prompt_len != len(turn.prompt_ids):
            raise DraftFailedError("malformed", f"prompt_len is {response.prompt_len}")
        if turn.prompt_ids != self._prompt_ids:
            # A new turn: the peer has released the old context.
            self.context_len, self._unconfirmed, self._is_seeded = 0, None, False
            self._prompt_ids = turn.prompt_ids
        return _banks(response)

    async def feed(self, rows: Aux) -> None:
        """Send the rows of the positions behind context_len: SeedContext first, then ExtendContext.

        While not `is_certain` the rows must be those up to `unconfirmed_end`, as before.  They are
        sent from their own memory, which stays as it is.
        """
        first, end = self.context_len, self.context_len + len(rows[0])
        assert self._unconfirmed in (None, end)
        is_repeat, self._unconfirmed = self._unconfirmed is not None, end
        aux = [viewed(WireArray(self._dtype, layer[None])) for layer in rows]
        asked_at_s = trio.current_time()
        with as_draft_failures(within_s=self._limits.seed_s):
            if self._is_seeded:
                confirmed = await self._extended(aux, first, end)
            elif is_repeat:
                # B may have been seeded by it: then it says so, and takes the rows as known ones.
                try:
                    confirmed = await self._seeded(aux, end)
                except RpcFailedError as error:
                    if status_name(error) != "FAILED_PRECONDITION":
                        raise
                    confirmed = await self._extended(aux, first, end)
            else:
                confirmed = await self._seeded(aux, end)
        if confirmed != end:
            raise DraftFailedError("malformed", f"context_len is {confirmed}, sent up to {end}")
        self.context_len, self._unconfirmed, self._is_seeded = end, None, True
        self.least_trip_s = min(self.least_trip_s, trio.current_time() - asked_at_s)

    async def _seeded(self, aux: list[TensorView], end: int) -> int:
        request = bulk.SeedContextRequest(self._id, aux, range(end))
        return (await self._stub.SeedContext(request)).context_len

    async def _extended(self, aux: list[TensorView], first: int, end: int) -> int:
        request = bulk.ExtendContextRequest(self._id, aux, range(first, end))
        return (await self._stub.ExtendContext(request)).context_len

    @property
    def unconfirmed_end(self) -> int | None:
        return self._unconfirmed

    async def draft(self, bonus: int, num_drafts: int, rows: Aux | None) -> tuple[int, ...]:
        """Drafts behind `bonus`, whose position is that behind `rows` (None: all is confirmed).

        The rows travel beside the request: one round trip.  The caller limits the wait.
        """
        context_len = self.context_len + (len(rows[0]) if rows is not None else 0)
        request = pb.DraftBlockRequest(
            session_id=self._id,
            bonus_token_id=bonus,
            context_len=context_len,
            block_size=num_drafts,
        )
        if rows is None:
            return await self._drafted(request)
        if not self._pipelines:
            await self.feed(rows)
            return await self._drafted(request)
        return await self._beside(request, rows)

    async def _beside(self, request: pb.DraftBlockRequest, rows: Aux) -> tuple[int, ...]:
        ids: tuple[int, ...] = ()
        failures: list[DraftFailedError] = []

        async def feed() -> None:
            try:
                await self.feed(rows)
            except DraftFailedError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        overtaken: DraftFailedError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed)
            try:
                ids = await self._drafted(request)
            except DraftFailedError as error:
                overtaken = error
        if failures:
            raise failures[0]
        if overtaken is None:
            return ids
        if overtaken.reason != "failed_precondition":
            raise overtaken
        self._pipelines = False
        return await self._drafted(request)

    async def _drafted(self, request: pb.DraftBlockRequest) -> tuple[int, ...]:
        with as_draft_failures(within_s=self._limits.draft_s):
            response = await self._stub.DraftBlock(request)
        return tuple(response.draft_token_ids)

    async def close(self) -> None:
        with as_draft_failures(within_s=self._limits.close_s):
            await self._stub.CloseSession(
                pb.DFlashProposerServiceCloseSessionRequest(session_id=self._id)
            )


@asynccontextmanager
async def remote_session(
    place: Place, stub: DflashStub, *, session_id: str, dtype: str, limits: DecodingLimits
) -> AsyncIterator[RemoteSession]:
    """A session that is closed on the peer when this ends, however it ends.

    dtype: that of the aux to be fed, float32 or bfloat16.  Nothing is sent before `restore`.
    """
    session = RemoteSession(place, stub, session_id=session_id, dtype=dtype, limits=limits)
    try:
        yield session
    finally:
        with trio.CancelScope(shield=True), _not_worth_more_than_a_line(place):
            await session.close()


@contextmanager
def _not_worth_more_than_a_line(place: Place) -> Iterator[None]:
    """The peer ends an abandoned session by itself."""
    try:
        yield
    except DraftFailedError as error:
        log.debug("a session could not be closed", node_id=place.node_id, why=error.why[:200])


def _banks(response: Restored) -> tuple[Bank, ...]:
    banks = []
    try:
        for each in response.restored:
            what = f"layer {each.layer}"
            k = decode(each.k, f"k of {what}", limits=WireLimits())
            v = decode(each.v, f"v of {what}", limits=WireLimits())
            if k.dtype != v.dtype or k.bits.ndim != 4 or v.bits.ndim != 4:
                raise DraftFailedError("malformed", f"k and v of {what} are not alike")
            banks.append(Bank(each.layer, k.dtype, k.bits[0], v.bits[0]))
    except Refused as refused:
        raise DraftFailedError("malformed", refused.why) from None
    return tuple(banks)


def pieces(first: int, end: int, length: int) -> Sequence[range]:
    """[first, end) cut at multiples of `length`, so that a context is cut alike however it grew."""
    cuts = [first, *range(first - first % length + length, end, length), end]
    return [range(a, b) for a, b in itertools.pairwise(cuts)]


__all__ = ["DflashStub", "RemoteSession", "Turn", "pieces", "remote_session"]
