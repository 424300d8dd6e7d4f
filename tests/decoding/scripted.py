"""Host B in a few lines: a DFlash service that decodes the toy verifier's aux, and can be broken.

It drafts what the toy verifier itself would say, from the rows it was given: a row that is
missing, twice there or out of place shows as a wrong draft or a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import trio

from kakeya.config.wire import WireLimits
from kakeya.errors import Refused, demand
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import WireArray, decode, encode

AUX_LAYERS = (0,)


@dataclass(slots=True)
class ScriptedSession:
    prompt_ids: tuple[int, ...]
    ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ScriptedDrafter:
    """trip_s: what a call costs.  breaks: raises to fail a call, told its name and number."""

    table: np.ndarray
    trip_s: float = 0.002
    breaks: Callable[[str, int], None] = lambda name, number: None
    loses_reply: Callable[[str, int], bool] = lambda name, number: False
    sessions: dict[str, ScriptedSession] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)
    restores: list[pb.RestoreRequest] = field(default_factory=list)
    grown: trio.Event = field(default_factory=trio.Event)

    async def Restore(self, message: pb.RestoreRequest) -> pb.RestoreResponse:
        await self._arrive("Restore")
        self.restores.append(message)
        held = self.sessions.get(message.session_id)
        if held is None or held.prompt_ids != tuple(message.prompt_ids):
            self.sessions[message.session_id] = ScriptedSession(tuple(message.prompt_ids))
        evicted = range(message.sink, max(message.sink, len(message.prompt_ids) - message.window))
        response = pb.RestoreResponse(prompt_len=len(message.prompt_ids), evicted_positions=evicted)
        if evicted:
            rows = np.ones((1, len(evicted), 1, 8), np.float32)
            bank = encode(WireArray("float32", rows))
            response.restored.append(pb.LayerKV(layer=0, k=bank, v=bank))
        await self._leave("Restore")
        return response

    async def SeedContext(self, message: pb.SeedContextRequest) -> pb.SeedContextResponse:
        await self._arrive("SeedContext")
        held = self._held(message.session_id)
        demand(not held.ids, "FAILED_PRECONDITION", "seeded twice")
        num_rows, most = len(message.positions), len(held.prompt_ids)
        demand(num_rows <= most, "INVALID_ARGUMENT", f"{num_rows} rows for {most} of a prompt")
        self._extend(held, message)
        await self._leave("SeedContext")
        return pb.SeedContextResponse(context_len=len(held.ids))

    async def ExtendContext(self, message: pb.ExtendContextRequest) -> pb.ExtendContextResponse:
        await self._arrive("ExtendContext")
        held = self._held(message.session_id)
        if message.positions[-1] + 1 > len(held.ids):
            self._extend(held, message)
        await self._leave("ExtendContext")
        return pb.ExtendContextResponse(context_len=len(held.ids))

    async def DraftBlock(self, message: pb.DraftBlockRequest) -> pb.DraftBlockResponse:
        await self._arrive("DraftBlock")
        held = self._held(message.session_id)
        while message.context_len > len(held.ids):
            await self.grown.wait()
        demand(message.context_len == len(held.ids), "FAILED_PRECONDITION", "another length")
        seen = [0, *held.ids, message.bonus_token_id]
        for _ in range(message.block_size):
            seen.append(int(np.argmax(self.table[seen[-2], seen[-1]])))
        await self._leave("DraftBlock")
        return pb.DraftBlockResponse(draft_token_ids=seen[-message.block_size :])

    async def CloseSession(
        self, message: pb.DFlashProposerServiceCloseSessionRequest
    ) -> pb.DFlashProposerServiceCloseSessionResponse:
        await self._arrive("CloseSession")
        self.sessions.pop(message.session_id, None)
        return pb.DFlashProposerServiceCloseSessionResponse()

    def forget_all(self) -> None:
        """As a restart does."""
        self.sessions.clear()

    def _held(self, session_id: str) -> ScriptedSession:
        held = self.sessions.get(session_id)
        if held is None:
            raise Refused("NOT_FOUND", "no such session")
        return held

    def _extend(
        self, held: ScriptedSession, message: pb.SeedContextRequest | pb.ExtendContextRequest
    ) -> None:
        demand(
            list(message.positions)
            == list(range(len(held.ids), len(held.ids) + len(message.positions))),
            "FAILED_PRECONDITION",
            f"the context ends at {len(held.ids)}, positions start at {message.positions[0]}",
        )
        (aux,) = message.aux
        rows = decode(aux, "aux[0]", limits=WireLimits()).bits
        assert rows.shape == (1, len(message.positions), 8)
        held.ids.extend(int(each) for each in rows[0, :, 0])
        self.grown.set()
        self.grown = trio.Event()

    async def _arrive(self, name: str) -> None:
        self.times.append((name, trio.current_time()))
        self.calls.append(name)
        await trio.sleep(self.trip_s / 2)
        self.breaks(name, self.calls.count(name))

    async def _leave(self, name: str) -> None:
        if self.loses_reply(name, self.calls.count(name)):
            await trio.sleep_forever()
        await trio.sleep(self.trip_s / 2)
