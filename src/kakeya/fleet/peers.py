"""Whom to call at a tick, and what became of earlier calls.

Decides only: random numbers, clocks and cards are passed in.  Knows addresses as text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.address import Reach, reach_of
from kakeya.fleet.card import Card, Offer


@dataclass(frozen=True, slots=True)
class Remembered:
    """An address at which a node was once seen.  Kept for 24 h, persisted.  Spec: F-06."""

    grpc_address: str
    node_id: str
    seen_at_unix: float


@dataclass(frozen=True, slots=True)
class Contact:
    """What our own calls to an address showed.  Spec: F-11, F-12."""

    # "" = it answered, or was never called.
    trouble: str = ""
    # Who answered at the last probe, and when (s, the clock of waits).
    node_id: str = ""
    probed_at_s: float = float("-inf")
    skew_s: float = 0.0
    is_skewed: bool = False


UNKNOWN = Contact()


@dataclass(frozen=True, slots=True)
class Target:
    """An address to call; `node_id` "" when whoever answers there is welcome (a seed)."""

    grpc_address: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Candidates:
    """Who could be called at a tick."""

    live: Sequence[Target]
    # Live by their cards, but our last call to them failed.
    down: Sequence[Target]
    # Remembered, no live card has that address.
    dead: Sequence[Target]
    seeds: Sequence[Target]
    # Those of `seeds` that no live card accounts for.
    missing_seeds: frozenset[str]
    num_live: int


def stretch(num_nodes: int, limits: FleetLimits) -> float:
    """By how much intervals and lifetimes grow with the fleet, 1 up to 32 nodes.  Spec: F-07."""
    over = num_nodes / limits.stretch_above_nodes
    return 1.0 + math.log2(over) if over > 1 else 1.0


def delay_s(num_nodes: int, rng: random.Random, limits: FleetLimits) -> float:
    """Time from one tick to the next.  Spec: F-07."""
    jitter = 1.0 + limits.jitter_ratio * (2.0 * rng.random() - 1.0)
    return limits.interval_s * stretch(num_nodes, limits) * jitter


def targets_of_tick(who: Candidates, rng: random.Random, limits: FleetLimits) -> list[Target]:
    """The peers of one tick, each address once, at most `max_exchanges`.  Spec: F-06.

    One random live peer; one that is live but did not answer us, so that it comes back soon;
    with p ≤ 0.25 one remembered dead address; each seed with p = 1/(live + 1), so `seeds` of them
    over `live + 1` are expected, and at least 0.1 while it is missing from the view.
    """
    chosen: list[Target] = []
    if who.live:
        chosen.append(rng.choice(who.live))
    if who.down:
        chosen.append(rng.choice(who.down))
    if who.dead:
        share = len(who.dead) / (who.num_live + 1)
        if rng.random() < min(limits.max_dead_probability, share):
            chosen.append(rng.choice(who.dead))
    seeds = list(who.seeds)
    rng.shuffle(seeds)
    for seed in seeds:
        probability = 1.0 / (who.num_live + 1)
        if seed.grpc_address in who.missing_seeds:
            probability = max(probability, limits.min_seed_probability)
        if rng.random() < probability:
            chosen.append(seed)
    return _distinct(chosen)[: limits.max_exchanges]


def targets_of_push(who: Candidates, rng: random.Random, limits: FleetLimits) -> list[Target]:
    """Who hears at once of a card that must not wait: 3 live peers and the seeds.  Spec: F-08."""
    live = [*who.live, *who.down] if len(who.live) < limits.push_peers else list(who.live)
    chosen = rng.sample(live, min(limits.push_peers, len(live)))
    return _distinct([*chosen, *who.seeds])[: limits.max_exchanges]


def targets_of_leave(who: Candidates, rng: random.Random, limits: FleetLimits) -> list[Target]:
    """Who hears a last card: the seeds and live peers, as many as are called at once.  Spec: F-08.

    The card lapses in two intervals, and who has not heard of it by then keeps the one before for
    its whole lifetime: so small fleets are told to a node.
    """
    live = rng.sample(who.live, len(who.live))
    return _distinct([*who.seeds, *live, *who.down])[: limits.max_exchanges]


def _distinct(targets: Iterable[Target]) -> list[Target]:
    by_address: dict[str, Target] = {}
    for target in targets:
        by_address.setdefault(target.grpc_address, target)
    return list(by_address.values())


class PeerBook:
    """Seeds, remembered addresses and contacts of one node."""

    def __init__(
        self,
        *,
        own_id: str,
        seeds: Sequence[str],
        remembered: Iterable[Remembered],
        limits: FleetLimits,
    ) -> None:
        self._own_id = own_id
        self._seeds = tuple(dict.fromkeys(seeds))
        self._limits = limits
        self._remembered = {known.grpc_address: known for known in remembered}
        self._contacts: dict[str, Contact] = {}
        self.loopback_is_near = False

    @property
    def seeds(self) -> tuple[str, ...]:
        return self._seeds

    @property
    def remembered(self) -> tuple[Remembered, ...]:
        """What should outlive this process, most recently seen last."""
        return tuple(sorted(self._remembered.values(), key=lambda known: known.seen_at_unix))

    def contact(self, grpc_address: str) -> Contact:
        return self._contacts.get(grpc_address, UNKNOWN)

    def note(self, grpc_address: str, contact: Contact) -> bool:
        """Keep what a call showed; true when the address began or ceased to answer."""
        changes = bool(self.contact(grpc_address).trouble) != bool(contact.trouble)
        if len(self._contacts) < 2 * self._limits.max_cards or grpc_address in self._contacts:
            self._contacts[grpc_address] = contact
        return changes

    def may_dial(self, reach: Reach) -> bool:
        """Loopback counts only when peers on this machine are expected.  Spec: F-14."""
        return reach == "far" or (reach == "near" and self.loopback_is_near)

    def is_reachable(self, offer: Offer) -> bool:
        """Whether a call from here has a chance.  Spec: F-11."""
        return self.may_dial(offer.reach) and not self.contact(offer.grpc_address).trouble

    def refresh(self, live: Sequence[Card], now_unix: float) -> None:
        """Remember where the live nodes are, forget where they no longer are.  Spec: F-06."""
        here = {card.node_id: card.offer.grpc_address for card in live}
        kept = {
            address: known
            for address, known in self._remembered.items()
            if abs(now_unix - known.seen_at_unix) <= self._limits.remember_s
            and here.get(known.node_id, address) == address
        }
        for card in live:
            if self.may_dial(card.offer.reach):
                address = card.offer.grpc_address
                kept[address] = Remembered(address, card.node_id, now_unix)
        oldest_first = sorted(kept.values(), key=lambda known: known.seen_at_unix)
        newest = oldest_first[-self._limits.max_addresses :]
        self._remembered = {known.grpc_address: known for known in newest}
        cared_for = {*self._seeds, *self._remembered, *here.values()}
        self._contacts = {a: c for a, c in self._contacts.items() if a in cared_for}

    def forget(self, grpc_address: str) -> None:
        """Drop an address at which somebody else answered."""
        self._remembered.pop(grpc_address, None)

    def candidates(self, live: Sequence[Card], own_address: str) -> Candidates:
        """Sort all addresses into the pools of `targets_of_tick`; our own is in none."""
        dialable = [
            Target(card.offer.grpc_address, card.node_id)
            for card in live
            if card.offer.grpc_address != own_address and self.may_dial(card.offer.reach)
        ]
        down = [t for t in dialable if self.contact(t.grpc_address).trouble]
        here = {t.grpc_address for t in dialable}
        ids = {card.node_id for card in live}
        seeds = [
            Target(seed, "")
            for seed in self._seeds
            if seed != own_address and self.contact(seed).node_id != self._own_id
        ]
        missing = frozenset(
            seed.grpc_address
            for seed in seeds
            if seed.grpc_address not in here and self.contact(seed.grpc_address).node_id not in ids
        )
        return Candidates(
            live=[t for t in dialable if not self.contact(t.grpc_address).trouble],
            down=down,
            dead=[
                Target(known.grpc_address, known.node_id)
                for known in self._remembered.values()
                if known.grpc_address not in here
                and known.grpc_address != own_address
                and known.node_id not in ids
                and self.may_dial(reach_of(known.grpc_address))
            ],
            seeds=seeds,
            missing_seeds=missing,
            num_live=len(live),
        )
