"""NodeService: what the kakeya commands ask of a running node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import trio

from kakeya.console.fleet_view import Prefers, fleet_response
from kakeya.console.generations import Generations
from kakeya.console.grpc_messages import event_of, request_of
from kakeya.console.overview import Overview
from kakeya.fleet.membership import Fleet
from kakeya.fleet.placement import no_preference
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceServicer


class NodeServicer(NodeServiceServicer):
    """Answers for one node."""

    def __init__(
        self,
        fleet: Fleet,
        generations: Generations,
        overview: Overview,
        prefers: Prefers = no_preference,
    ) -> None:
        super().__init__()
        self._overview = overview
        self._fleet = fleet
        self._prefers = prefers
        self._generations = generations

    async def GetFleet(  # noqa: N802 - the service's name
        self, input_message: pb.GetFleetRequest
    ) -> pb.GetFleetResponse:
        await trio.lowlevel.checkpoint()
        return fleet_response(self._fleet, input_message, self._prefers)

    async def GetOverview(  # noqa: N802 - the service's name
        self, input_message: pb.GetOverviewRequest
    ) -> pb.GetOverviewResponse:
        await trio.lowlevel.checkpoint()
        return pb.GetOverviewResponse(json=msgspec.json.encode(self._overview.as_json()).decode())

    async def Generate(  # noqa: N802 - the service's name
        self, input_message: pb.GenerateRequest
    ) -> AsyncIterator[pb.GenerateEvent]:
        async with self._generations.open(request_of(input_message)) as generation:
            async for block in generation.blocks:
                yield event_of(block, generation.model_id, generation.backend)
