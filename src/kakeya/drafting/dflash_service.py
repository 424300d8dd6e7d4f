"""DFlashProposerService: messages to requests of sessions, and their replies back.

Refuses what no session needs to be asked about.  Knows no drafter's framework and no transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kakeya.compute.device import Device
from kakeya.config.sessions import SessionLimits
from kakeya.config.wire import WireLimits
from kakeya.drafting.aux_rows import AuxRows
from kakeya.drafting.drafter import DflashDrafter, LayerBank, RestorePlan
from kakeya.drafting.session_states import (
    Banks,
    CloseSession,
    DraftBlock,
    ExtendContext,
    Restore,
    SeedContext,
)
from kakeya.drafting.sessions import Session, Sessions
from kakeya.errors import Refused, demand
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceServicer
from kakeya.wire.tensor import check_positions, viewed

if TYPE_CHECKING:
    from kakeya.rpc.endpoint import Call


# Read without a copy where the endpoint has a reader for them (wire/bulk).
SeedRequest = pb.SeedContextRequest | bulk.SeedContextRequest
ExtendRequest = pb.ExtendContextRequest | bulk.ExtendContextRequest


class DflashService(DFlashProposerServiceServicer):
    """Serves sessions of any drafter added; the first one is the default.

    `device` is where all of them compute.  The node itself calls the methods without a `request`.
    """

    def __init__(
        self, sessions: Sessions, *, device: Device, limits: SessionLimits, wire: WireLimits
    ) -> None:
        super().__init__()
        self._sessions = sessions
        self._device = device
        self._limits = limits
        self._wire = wire
        self._served: dict[str, DflashDrafter] = {}  # the default first

    def add(self, drafter: DflashDrafter) -> None:
        """Serve `drafter` from now on."""
        assert drafter.model_id not in self._served
        self._served[drafter.model_id] = drafter

    async def Restore(  # type: ignore[override]  # noqa: N802 - the contract's name
        self, message: pb.RestoreRequest, request: Call | None = None
    ) -> bulk.RestoreResponse:
        banks = await self._restored(message, peer_of(request))
        layers = [await self._device.run(_layer_of, bank) for bank in banks.layers]
        return bulk.RestoreResponse(layers, banks.evicted, banks.prompt_len)

    async def SeedContext(  # type: ignore[override]  # noqa: N802
        self, message: SeedRequest, request: Call | None = None
    ) -> pb.SeedContextResponse:
        session = self._sessions.get(message.session_id, peer_of(request))
        aux, first, end = self._aux(message, session)
        context_len = await session.desk.ask(SeedContext(aux, first, end))
        return pb.SeedContextResponse(context_len=context_len)

    async def DraftBlock(  # type: ignore[override]  # noqa: N802
        self, message: pb.DraftBlockRequest, request: Call | None = None
    ) -> pb.DraftBlockResponse:
        session = self._sessions.get(message.session_id, peer_of(request))
        draft = await session.desk.ask(
            DraftBlock(message.bonus_token_id, message.context_len, message.block_size)
        )
        return pb.DraftBlockResponse(
            draft_token_ids=draft.ids,
            forward_passes=draft.forward_passes,
            peak_activation_bytes=draft.peak_activation_bytes,
        )

    async def ExtendContext(  # type: ignore[override]  # noqa: N802
        self, message: ExtendRequest, request: Call | None = None
    ) -> pb.ExtendContextResponse:
        session = self._sessions.get(message.session_id, peer_of(request))
        aux, first, end = self._aux(message, session)
        context_len = await session.desk.ask(ExtendContext(aux, first, end))
        return pb.ExtendContextResponse(context_len=context_len)

    async def CloseSession(  # type: ignore[override]  # noqa: N802
        self,
        message: pb.DFlashProposerServiceCloseSessionRequest,
        request: Call | None = None,
    ) -> pb.DFlashProposerServiceCloseSessionResponse:
        session = self._sessions.find(message.session_id, peer_of(request))
        if session is not None:
            await session.desk.ask(CloseSession())
        return pb.DFlashProposerServiceCloseSessionResponse()

    async def _restored(self, message: pb.RestoreRequest, peer: str) -> Banks:
        """The banks, from the peer's session or from a new one.

        A session may end while this waits for its turn: closed, or given up with the caller who
        opened it.  Then there is none, and it is opened.
        """
        asked = restore_of(message)
        session = self._opened(message, peer)
        try:
            banks: Banks = await session.desk.ask(asked)
        except Refused as refused:
            # Only the end of a session says so to a Restore.
            if refused.status != "NOT_FOUND":
                raise
            banks = await self._opened(message, peer).desk.ask(asked)
        return banks

    def _opened(self, message: pb.RestoreRequest, peer: str) -> Session:
        """The peer's session of that name, opened where there is none."""
        self._sessions.demand_admitting()
        drafter = self._chosen(message.model_id)
        session = self._sessions.find(message.session_id, peer)
        if session is not None:
            return session
        most, length = self._limits.max_session_id_len, len(message.session_id)
        demand(
            1 <= length <= most,
            "INVALID_ARGUMENT",
            f"the length of session_id is {length}, it must be at least 1 and at most {most}",
        )
        return self._sessions.open(message.session_id, peer, drafter)

    def _chosen(self, model_id: str) -> DflashDrafter:
        for drafter in self._served.values():
            if model_id in ("", drafter.model_id):
                return drafter
        asked = repr(model_id[:128]) if model_id else "of any name"
        served = ", ".join(sorted(self._served)) or "none"
        raise Refused("NOT_FOUND", f"no drafter {asked} here; served: {served}")

    def _aux(
        self, message: SeedRequest | ExtendRequest, session: Session
    ) -> tuple[AuxRows, int, int]:
        """The rows of a request, their first position, and the one behind the last."""
        positions, shape = message.positions, session.drafter.shape
        num_rows, most = len(positions), shape.max_context_len
        demand(
            1 <= num_rows <= most,
            "INVALID_ARGUMENT",
            f"{num_rows} positions, they must be at least 1 and at most {most}",
        )
        check_positions(positions, "positions", count=num_rows)
        aux = AuxRows(message.aux, num_rows, shape=shape, limits=self._wire)
        return aux, positions[0], positions[-1] + 1


def restore_of(message: pb.RestoreRequest) -> Restore:
    plan = RestorePlan(
        tuple(message.prompt_ids), message.sink, message.window, message.s5_exact_full_attn
    )
    return Restore(plan, message.model_id)


def peer_of(call: Call | None) -> str:
    """Whom a session belongs to that this call opens.  Spec: R-16, S-09.

    Who proved a name is that name; anybody else is the connection, as long as it lasts.  Without
    a call it is this node itself, drafting at home.
    """
    if call is None:
        return "this node"
    return f"name {call.principal}" if call.principal else f"connection {call.peer_address}"


def _layer_of(bank: LayerBank) -> bulk.LayerKV:
    return bulk.LayerKV(bank.layer, viewed(bank.k), viewed(bank.v))


__all__ = ["DflashService", "peer_of", "restore_of"]
