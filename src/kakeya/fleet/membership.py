"""The fleet as the rest of the node sees it: one object, made of the parts of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from kakeya.config.fleet import FleetLimits, demand_sound
from kakeya.errors import demand
from kakeya.fleet.address import Listening, kind_of, parse
from kakeya.fleet.card import Card, Model, Offer
from kakeya.fleet.gossip import Gossip, Surroundings
from kakeya.fleet.own import OwnCard
from kakeya.fleet.peers import PeerBook
from kakeya.fleet.placement import Plan, accepts_all, no_preference, plan
from kakeya.fleet.registry import Registry
from kakeya.fleet.service import CapabilityServicer, demand_fleet_name
from kakeya.fleet.store import Saved, usable


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What the operator and the machine say of this node."""

    node_id: str  # "" = the saved one, or a new one
    fleet_name: str
    seeds: tuple[str, ...]
    advertise: str  # HOST or HOST:PORT; "" = derive it
    platform: str
    memory_bytes: int
    mlx_version: str
    models: tuple[Model, ...]
    ttl_is_explicit: bool


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as `kakeya fleet` shows it."""

    node_id: str
    grpc_address: str
    age_s: float
    ttl_s: float
    reachable: bool
    platform: str
    memory_bytes: int
    mlx_version: str
    models: tuple[Model, ...]
    # Its clock minus ours at the last probe, 0 while unmeasured.
    clock_skew_s: float
    # Not "": another node claims this node_id from there.
    conflict_address: str
    # Why it cannot be reached from here, "" when it can.
    trouble: str


class Fleet:
    """Our card, everybody else's, and the ticker that spreads them."""

    def __init__(
        self,
        *,
        own: OwnCard,
        registry: Registry,
        book: PeerBook,
        around: Surroundings,
        settings: FleetSettings,
        limits: FleetLimits,
    ) -> None:
        self._own = own
        self._registry = registry
        self._book = book
        self._wall = around.wall
        self._settings = settings
        self._limits = limits
        self._gossip = Gossip(own=own, registry=registry, book=book, around=around, limits=limits)

    @property
    def node_id(self) -> str:
        return self._own.offer.node_id

    @property
    def fleet_name(self) -> str:
        return self._settings.fleet_name

    def listens_on(self, host: str, port: int) -> None:
        """Say where the gRPC listener is bound; before `run` and before any call is served."""
        self._gossip.listens_on(Listening(host, port, self._settings.advertise))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Gossip until cancelled; may be started again after a failure."""
        await self._gossip.run(task_status)

    async def leave(self) -> None:
        """Tell peers that this node offers nothing any more; takes one exchange deadline."""
        await self._gossip.leave()

    def servicer(self) -> CapabilityServicer:
        """The CapabilityService to serve to peers."""
        return CapabilityServicer(self._gossip, self._limits)

    def own_card(self) -> Card:
        """Our card as peers get it now."""
        return self._gossip.own_card()

    def announce(self, models: Sequence[Model]) -> None:
        """Offer these models from now on, and say so soon.  Raises Refused (bounds of F-01)."""
        if self._own.is_leaving:
            return
        self._own.offer_models(models)
        self._own.issue(self._wall())
        self._gossip.push_soon()

    def snapshot(self) -> list[Card]:
        """All live cards, our own first, then by node_id.  Spec: F-04."""
        return [self.own_card(), *self._registry.live(self._wall())]

    def nodes(self) -> list[NodeRow]:
        """A row for every card of the snapshot."""
        now_unix = self._wall()
        return [self._row(card, now_unix) for card in self.snapshot()]

    def _row(self, card: Card, now_unix: float) -> NodeRow:
        offer, is_self = card.offer, card.node_id == self.node_id
        contact = self._book.contact(offer.grpc_address)
        may_dial = is_self or self._book.may_dial(offer.reach)
        trouble = contact.trouble if may_dial else "its address cannot be dialled from here"
        return NodeRow(
            node_id=card.node_id,
            grpc_address=offer.grpc_address,
            age_s=now_unix - card.announced_at_unix,
            ttl_s=offer.ttl_s,
            reachable=is_self or not trouble,
            platform=offer.platform,
            memory_bytes=offer.memory_bytes,
            mlx_version=offer.mlx_version,
            models=offer.models,
            clock_skew_s=contact.skew_s if contact.node_id == card.node_id else 0.0,
            conflict_address=self._own.conflict(now_unix) if is_self else "",
            trouble="" if is_self else trouble,
        )

    def plan(
        self,
        role: int,
        model_id: str,
        accepts: Callable[[Model], bool] = accepts_all,
        prefers: Callable[[str, Model], int] = no_preference,
    ) -> Plan:
        """Whom to ask for `model_id` ("" = any) in `role`.  Raises NobodyQualifies."""
        cards = self.snapshot()
        unreachable = {
            card.node_id for card in cards[1:] if not self._book.is_reachable(card.offer)
        }
        return plan(
            cards,
            role=role,
            model_id=model_id,
            self_node_id=self.node_id,
            unreachable=unreachable,
            now_unix=self._wall(),
            accepts=accepts,
            prefers=prefers,
        )

    def note_unreachable(self, grpc_address: str, why: str) -> None:
        """A call to that address failed; placement passes it over until it answers again."""
        self._gossip.note_trouble(grpc_address, why)

    def note_reachable(self, grpc_address: str) -> None:
        """A call to that address was answered."""
        self._gossip.note_answer(grpc_address)

    def rejections(self) -> dict[str, int]:
        """Cards that were not taken, by reason; every reason is there from the start."""
        return {str(reason): count for reason, count in self._registry.rejections.items()}

    def exchanges(self) -> dict[str, int]:
        """Exchanges begun by us: ok and failed."""
        return dict(self._gossip.exchanges)


def build_fleet(settings: FleetSettings, *, limits: FleetLimits, around: Surroundings) -> Fleet:
    """A fleet of one node, which `run` makes grow.  Reads the store.

    Raises Refused(INVALID_ARGUMENT) for settings that cannot work, naming value and bound.
    """
    demand_sound(limits, ttl_is_explicit=settings.ttl_is_explicit)
    demand_fleet_name(settings.fleet_name)
    _demand_addresses(settings, limits)
    now_unix = around.wall()
    saved = usable(
        around.store.load(),
        now_unix=now_unix,
        remember_s=limits.remember_s,
        max_addresses=limits.max_addresses,
    )
    node_id = settings.node_id or saved.node_id or f"node-{around.rng.getrandbits(48):012x}"
    own = OwnCard(
        _offer(settings, node_id, limits),
        persisted_unix=_last_stamp(saved, node_id),
        limits=limits,
    )
    own.issue(now_unix)  # refuses content that breaks a bound, before anything is started
    return Fleet(
        own=own,
        registry=Registry(node_id, limits),
        book=PeerBook(
            own_id=node_id, seeds=settings.seeds, remembered=saved.addresses, limits=limits
        ),
        around=around,
        settings=settings,
        limits=limits,
    )


def _offer(settings: FleetSettings, node_id: str, limits: FleetLimits) -> Offer:
    return Offer(
        node_id=node_id,
        grpc_address="",
        platform=settings.platform,
        memory_bytes=settings.memory_bytes,
        mlx_version=settings.mlx_version,
        models=settings.models,
        ttl_s=limits.ttl_s,
        ring_address="",
        reach="nowhere",
        head=b"",
        tail=b"",
    )


def _last_stamp(saved: Saved, node_id: str) -> float:
    return saved.last_stamp_unix if saved.node_id == node_id else float("-inf")


def _demand_addresses(settings: FleetSettings, limits: FleetLimits) -> None:
    demand(
        len(settings.seeds) <= limits.max_seeds,
        "INVALID_ARGUMENT",
        f"{len(settings.seeds)} peers are given, the limit is {limits.max_seeds}",
    )
    for seed in settings.seeds:
        demand(
            parse(seed) is not None,
            "INVALID_ARGUMENT",
            f"peer is {seed[:80]!r}, it must be HOST:PORT (IPv6 as [HOST]:PORT)",
        )
    asked = parse(settings.advertise)
    host = asked.host if asked else settings.advertise
    is_usable = not host or (
        kind_of(host) not in ("wildcard", "forbidden")
        and parse(settings.advertise if asked else f"{host}:1") is not None
    )
    demand(
        is_usable,
        "INVALID_ARGUMENT",
        f"advertise is {settings.advertise[:80]!r}, it must be a HOST or HOST:PORT that peers "
        "can dial",
    )
