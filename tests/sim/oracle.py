"""What must hold of every node's view at every moment, whatever goes wrong."""

from __future__ import annotations

import math
from typing import Protocol

from kakeya.fleet.card import Card
from kakeya.fleet.membership import Fleet
from tests.sim.violation import Violation


class Watched(Protocol):
    """What the oracle looks at."""

    def fleets(self) -> dict[str, Fleet]: ...
    def wall(self, name: str) -> float: ...
    def address(self, name: str) -> str: ...
    def was_issued(self, node_id: str, frame: bytes) -> bool: ...


class Oracle:
    """Looks at all views; raises Violation with the first rule that is broken."""

    def __init__(self, play: Watched) -> None:
        self._play = play
        # The stamps last seen, by owner's id, of every life of a viewer.
        self._held: dict[int, dict[str, float]] = {}
        self._fleets: list[Fleet] = []  # so that no id() is used twice
        self.num_looks = 0

    def look(self) -> None:
        self.num_looks += 1
        for name, fleet in self._play.fleets().items():
            if fleet not in self._fleets:
                self._fleets.append(fleet)
            now_unix = self._play.wall(name)
            self._forget_incredible(fleet, now_unix)
            cards = fleet.snapshot()
            self._demand_own_card(name, fleet, cards, now_unix)
            self._demand_bounds(name, fleet, cards)
            for card in cards:
                self._demand_sound(name, fleet, card, now_unix)
            for card in cards[1:]:
                demand(
                    self._play.was_issued(card.node_id, card.frame),
                    "S4",
                    f"{name} holds a card of {card.node_id} that nobody issued",
                )

    def _demand_own_card(self, name: str, fleet: Fleet, cards: list[Card], now_unix: float) -> None:
        own = [card for card in cards if card.node_id == fleet.node_id]
        demand(own == cards[:1], "S2", f"{name} shows {len(own)} cards of its own")
        address = own[0].offer.grpc_address
        is_ours = address in ("", self._play.address(name))
        demand(is_ours, "S2", f"{name} shows {address!r} as its own address")
        ids = [card.node_id for card in cards]
        demand(len(set(ids)) == len(ids), "S2", f"{name} shows a node twice")

    def _demand_bounds(self, name: str, fleet: Fleet, cards: list[Card]) -> None:
        limits = fleet._limits
        demand(len(cards) <= limits.max_cards, "S5", f"{name} holds {len(cards)} cards")
        num_bytes = sum(len(card.frame) for card in cards)
        demand(num_bytes <= limits.max_view_bytes, "S5", f"{name} holds {num_bytes} bytes")
        registry, book = fleet._registry, fleet._book
        demand(
            registry.held_bytes == sum(len(card.frame) for card in cards[1:]),
            "S5",
            f"{name} counts {registry.held_bytes} bytes",
        )
        demand(len(registry._dropped) <= limits.max_dropped_stamps, "S5", f"{name} remembers much")
        demand(len(book.remembered) <= limits.max_addresses, "S5", f"{name} remembers much")

    def _demand_sound(self, name: str, fleet: Fleet, card: Card, now_unix: float) -> None:
        stamp, limits = card.announced_at_unix, fleet._limits
        demand(not card.is_expired(now_unix), "S1", f"{name} shows {card.node_id}, which lapsed")
        most = now_unix + limits.max_ahead_s
        demand(
            math.isfinite(stamp) and stamp <= most + 1e-6,
            "S7",
            f"{name} holds {card.node_id} stamped {stamp - now_unix:.1f} s ahead",
        )
        held = self._held[id(fleet)]
        before = held.get(card.node_id, -math.inf)
        demand(
            stamp >= before,
            "S3" if card.node_id != fleet.node_id else "S2",
            f"{name} went back {before - stamp:.3f} s with the card of {card.node_id}",
        )
        held[card.node_id] = stamp

    def _forget_incredible(self, fleet: Fleet, now_unix: float) -> None:
        """A stamp that a clock set back makes incredible is forgotten, and an older one taken."""
        most = now_unix + fleet._limits.max_ahead_s
        held = self._held.get(id(fleet), {})
        self._held[id(fleet)] = {key: stamp for key, stamp in held.items() if stamp <= most}


def demand(holds: bool, rule: str, what: str) -> None:
    if not holds:
        raise Violation(rule, what)
