"""CapabilityService as peers call it, and the check that they belong to our fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import purerpc

from kakeya.config.fleet import FleetLimits
from kakeya.errors import demand
from kakeya.fleet.address import parse
from kakeya.fleet.calls import SERVICE, View, signature_of
from kakeya.fleet.frames import split
from kakeya.fleet.gossip import Gossip
from kakeya.wire.pb.kakeya.v1 import distributed_grpc
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb

if TYPE_CHECKING:
    from kakeya.rpc.endpoint import Call

FLEET_KEY = "kakeya-fleet"
DEFAULT_FLEET = "kakeya"
MAX_FLEET_NAME_LEN = 64
# The services of the contract; health, reflection and the node's own commands are not peers'.
PEER_SERVICES = "kakeya.v1."


def fleet_metadata(fleet_name: str) -> tuple[tuple[str, str], ...]:
    """What every call to a peer carries.  Raises Refused for a name metadata cannot hold."""
    demand_fleet_name(fleet_name)
    return ((FLEET_KEY, fleet_name),)


def demand_fleet_name(fleet_name: str) -> None:
    """Raise Refused(INVALID_ARGUMENT) unless the name is 1 … 64 letters, digits, `.`, `_`, `-`."""
    is_plain = fleet_name.isascii() and all(c.isalnum() or c in "._-" for c in fleet_name)
    demand(
        is_plain and 0 < len(fleet_name) <= MAX_FLEET_NAME_LEN,
        "INVALID_ARGUMENT",
        f"the fleet name is {fleet_name[:80]!r}, it must be 1 to {MAX_FLEET_NAME_LEN} letters, "
        "digits, '.', '_' or '-'",
    )


def demand_same_fleet(metadata: Iterable[tuple[str, str | bytes]], fleet_name: str) -> None:
    """Raise Refused(FAILED_PRECONDITION) unless the caller is of `fleet_name`.

    Peers that speak the bare contract send no name: they belong to the fleet of the default
    name, and to no other.  Spec: F-10.
    """
    names = [value for key, value in metadata if key == FLEET_KEY] or [DEFAULT_FLEET]
    theirs = sorted({n.decode("ascii", "replace") if isinstance(n, bytes) else n for n in names})
    demand(
        theirs == [fleet_name],
        "FAILED_PRECONDITION",
        f"this node is of fleet {fleet_name!r}, the call of {', '.join(theirs)[:80]!r}",
    )


def admits(fleet_name: str) -> Callable[[Call], None]:
    """For `Endpoint(admit=…)`: lets peers' calls in only when they are of `fleet_name`."""

    def admit(call: Call) -> None:
        if call.service.startswith(PEER_SERVICES):
            demand_same_fleet(call.metadata, fleet_name)

    return admit


class CapabilityServicer(distributed_grpc.CapabilityServiceServicer):
    """Both calls of the contract.  Bad cards are dropped, the others count.  Spec: F-01."""

    def __init__(self, gossip: Gossip, limits: FleetLimits) -> None:
        self._gossip = gossip
        self._limits = limits

    async def ExchangeCapabilities(  # type: ignore[override]  # noqa: N802
        self, input_message: View, request: Any
    ) -> View:
        view = input_message.content
        limit = self._limits.max_view_bytes
        demand(
            len(view) <= limit,
            "RESOURCE_EXHAUSTED",
            f"a view of {len(view)} bytes, the limit is {limit}",
        )
        parts = split(view, max_cards=self._limits.max_cards)
        demand(
            not parts.has_more,
            "RESOURCE_EXHAUSTED",
            f"more than {self._limits.max_cards} cards in one message",
        )
        demand(
            not parts.is_broken, "INVALID_ARGUMENT", "not an ExchangeCapabilitiesRequest message"
        )
        return View(await self._gossip.answer_exchange(parts.frames, host_of(request)))

    async def GetNodeCapability(  # type: ignore[override]  # noqa: N802
        self, input_message: pb.GetNodeCapabilityRequest, request: Any
    ) -> View:
        return View(await self._gossip.answer_probe(host_of(request)))

    @property
    def service(self) -> purerpc.Service:
        """The generated service, but with views left undecoded."""
        service = purerpc.Service(SERVICE)
        service.add_method("ExchangeCapabilities", self.ExchangeCapabilities, signature_of(View))
        service.add_method(
            "GetNodeCapability",
            self.GetNodeCapability,
            signature_of(pb.GetNodeCapabilityRequest),
        )
        return service


def host_of(call: Any) -> str:
    """The caller's host without its port, "" when the transport does not say."""
    address = parse(str(call.peer_address))
    return address.host if address else ""
