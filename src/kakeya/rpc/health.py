"""grpc.health.v1: whether this node, or one of its services, takes calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import trio

from kakeya.config.rpc import RpcLimits
from kakeya.errors import Refused, demand
from kakeya.wire.pb.grpc.health.v1 import health_grpc
from kakeya.wire.pb.grpc.health.v1 import health_pb2 as pb


class Health:
    """The statuses of the node as a whole ("") and of its services; starts as NOT_SERVING.

    The node's phase drives it: serving once it listens, not serving first thing on drain.
    """

    def __init__(
        self, services: Iterable[str], *, max_watchers: int = RpcLimits().max_health_watchers
    ) -> None:
        self._is_serving = dict.fromkeys(["", *services], False)
        self._changed = trio.Event()
        self._max_watchers = max_watchers
        self._num_watchers = 0

    def set_all(self, *, is_serving: bool) -> None:
        """Every service at once."""
        self._is_serving = dict.fromkeys(self._is_serving, is_serving)
        self._tell()

    def set(self, service: str, *, is_serving: bool) -> None:
        """One service of those given at the start."""
        assert service in self._is_serving
        self._is_serving[service] = is_serving
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def status(self, service: str) -> int:
        """A ServingStatus; SERVICE_UNKNOWN for what this node does not have."""
        if service not in self._is_serving:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        if self._is_serving[service]:
            return pb.HealthCheckResponse.SERVING
        return pb.HealthCheckResponse.NOT_SERVING

    async def watch(self, service: str) -> AsyncIterator[int]:
        """The status now and after every change, until closed."""
        demand(
            self._num_watchers < self._max_watchers,
            "RESOURCE_EXHAUSTED",
            f"{self._num_watchers} watch health, the limit is {self._max_watchers}",
        )
        self._num_watchers += 1
        try:
            told = None
            while True:
                changed, now = self._changed, self.status(service)
                if now != told:
                    yield now
                    told = now
                await changed.wait()
        finally:
            self._num_watchers -= 1


class HealthService(health_grpc.HealthServicer):
    """The service in front of a Health."""

    def __init__(self, health: Health) -> None:
        self._health = health

    async def Check(  # noqa: N802
        self, input_message: pb.HealthCheckRequest
    ) -> pb.HealthCheckResponse:
        status = self._health.status(input_message.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            raise Refused("NOT_FOUND", "no such service here")
        return pb.HealthCheckResponse(status=_named(status))

    async def Watch(  # noqa: N802
        self, input_message: pb.HealthCheckRequest
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        watched = self._health.watch(input_message.service)
        try:
            async for status in watched:
                yield pb.HealthCheckResponse(status=_named(status))
        finally:
            await watched.aclose()  # type: ignore[attr-defined]


def _named(status: int) -> pb.HealthCheckResponse.ServingStatus:
    return pb.HealthCheckResponse.ServingStatus.Name(status)  # type: ignore[return-value]
