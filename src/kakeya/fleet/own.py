"""Our own card: its content, its stamp, and what to make of others that carry our id.

Decides only; the caller passes the wall clock and pushes the card when told to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kakeya.config.fleet import FleetLimits
from kakeya.errors import demand
from kakeya.fleet.card import Bad, Card, Model, Offer, decode, encode

STEP_S = 0.001


def next_stamp(
    now_unix: float, *, issued: float, persisted: float, seen: float, limits: FleetLimits
) -> float:
    """The stamp of our next card; -inf stands for none yet.  Spec: F-05.

    `issued` is our last stamp, `persisted` the last one of an earlier life, `seen` the highest
    on a card with our id that we had not issued.  One of them so far ahead that not even a clock
    as fast as is put up with believed it came of a wrong clock, and does not count.
    """
    latest = now_unix + limits.max_ahead_s
    believed = latest + limits.max_ahead_s
    floors = (
        (issued, STEP_S),
        (persisted, STEP_S),
        (seen, 2 * limits.interval_s),
    )
    wanted = [stamp + ahead_s for stamp, ahead_s in floors if stamp <= believed]
    return min(max([now_unix, *wanted]), latest)


@dataclass(frozen=True, slots=True)
class Contest:
    """A card with our id that we did not issue."""

    seen_at_unix: float
    announced_at_unix: float
    grpc_address: str


class OwnCard:
    """The card we issue.  Nobody else's ever takes its place."""

    def __init__(self, offer: Offer, *, persisted_unix: float, limits: FleetLimits) -> None:
        self._offer = offer
        self._limits = limits
        self._persisted_unix = persisted_unix
        self._seen_unix = float("-inf")
        self._first_issued_unix = float("-inf")
        self._card: Card | None = None
        self._contests: deque[Contest] = deque(maxlen=limits.max_forced_stamps)
        self._rival: Contest | None = None
        self._bid_at_unix = float("-inf")
        self._addresses: set[str] = set()
        self.is_leaving = False

    @property
    def offer(self) -> Offer:
        return self._offer

    @property
    def last_stamp_unix(self) -> float:
        """The last stamp issued in this life or, before the first, in an earlier one."""
        return self._persisted_unix if self._card is None else self._card.announced_at_unix

    def issue(self, now_unix: float) -> Card:
        """A card with a new stamp.  Raises Refused when the content breaks a bound of F-01."""
        issued = float("-inf") if self._card is None else self._card.announced_at_unix
        stamp = next_stamp(
            now_unix,
            issued=issued,
            persisted=self._persisted_unix,
            seen=self._seen_unix,
            limits=self._limits,
        )
        card = self._made(self._offer, stamp, now_unix)
        if self._card is None:
            self._first_issued_unix = stamp
        self._card = card
        self._addresses.add(card.offer.grpc_address)
        return card

    def _made(self, offer: Offer, stamp: float, now_unix: float) -> Card:
        card = decode(encode(offer, stamp), now_unix=now_unix, limits=self._limits)
        if isinstance(card, Bad):
            demand(False, "INVALID_ARGUMENT", f"this node's own card has {card.why}")
        assert isinstance(card, Card)
        return card

    def current(self, now_unix: float, *, max_age_s: float) -> Card:
        """The card as it is, or a new one when it is older than `max_age_s` or our clock was
        set back below what others believe."""
        card = self._card
        if card is not None:
            age_s = now_unix - card.announced_at_unix
            if -self._limits.max_ahead_s <= age_s <= max_age_s:
                return card
        return self.issue(now_unix)

    def offer_models(self, models: Sequence[Model]) -> None:
        """What the next card offers.  Raises Refused when it would break a bound of F-01."""
        offer = replace(self._offer, models=tuple(models))
        self._made(offer, 0.0, 0.0)
        self._offer = offer

    def move_to(self, grpc_address: str) -> bool:
        """Set the address of the next card; true when that changes it."""
        changes = grpc_address != self._offer.grpc_address
        self._offer = replace(self._offer, grpc_address=grpc_address)
        if len(self._addresses) > 64:  # a laptop that roams for weeks
            self._addresses.clear()
        return changes

    def live_for(self, ttl_s: float) -> None:
        """Set the lifetime of the next card."""
        self._offer = replace(self._offer, ttl_s=ttl_s)

    def leave(self, now_unix: float) -> Card:
        """The last card: no models, two intervals to live.  Spec: F-08."""
        self.is_leaving = True
        ttl_s = 2 * self._limits.interval_s
        self._offer = replace(self._offer, models=(), ring_address="", ttl_s=ttl_s)
        return self.issue(now_unix)

    def notice(self, seen: Card, now_unix: float) -> bool:
        """Judge a card with our id that came from outside; true when ours must be pushed now.

        One that beats ours is outbid.  When that goes on, two nodes share the id: `conflict`
        names the other, and one bid a lifetime is left, so that the other keeps hearing of us.
        Spec: F-05, F-09.
        """
        if self._card is None:
            self.issue(now_unix)
        assert self._card is not None
        stamp, address = seen.announced_at_unix, seen.offer.grpc_address
        is_ours = seen.frame == self._card.frame
        outbids = not is_ours and stamp >= self._card.announced_at_unix
        is_stranger = stamp > self._first_issued_unix and address not in self._addresses
        if not outbids and not is_stranger:
            return False
        was_in_conflict = bool(self.conflict(now_unix))
        self._count(Contest(now_unix, stamp, address))
        since_bid_s = abs(now_unix - self._bid_at_unix)
        if not outbids or (was_in_conflict and since_bid_s < self._offer.ttl_s):
            return False
        self._bid_at_unix = now_unix
        self._seen_unix = max(self._seen_unix, stamp)
        self.issue(now_unix)
        return True

    def _count(self, contest: Contest) -> None:
        known = [c.announced_at_unix for c in self._contests]
        if contest.announced_at_unix in known:
            return  # the same card again, from another peer
        self._contests.append(contest)
        recent = [c for c in self._contests if self._is_recent(c, contest.seen_at_unix)]
        if self.conflict(contest.seen_at_unix) or len(recent) >= self._limits.max_forced_stamps:
            self._rival = contest

    def _is_recent(self, contest: Contest, now_unix: float) -> bool:
        return abs(now_unix - contest.seen_at_unix) <= 2 * self._offer.ttl_s

    def is_contested(self, now_unix: float) -> bool:
        """Whether a card with our id that we did not issue was seen lately."""
        return any(self._is_recent(contest, now_unix) for contest in self._contests)

    def conflict(self, now_unix: float) -> str:
        """The address of another node with our id, "" while there is no sign of one."""
        if self._rival is None or not self._is_recent(self._rival, now_unix):
            return ""
        return self._rival.grpc_address or "an unnamed address"
