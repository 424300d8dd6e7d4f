"""All cards but our own: merged, expired and written out again as one view.

Decides only: every function takes `now_unix` and returns what happened.  Knows no network.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.card import (
    REASONS,
    Bad,
    Card,
    Reason,
    beats,
    decode,
    restamped,
)
from kakeya.fleet.frames import peeked_id


@dataclass(frozen=True, slots=True)
class Dropped:
    """What is remembered of a card that is gone, so that it does not come back as a ghost."""

    announced_at_unix: float
    until_unix: float


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did."""

    joined: tuple[Card, ...]
    num_newer: int
    bad: tuple[Bad, ...]
    # Valid cards with our own id: never taken, the newest one, if any, is for OwnCard to judge.
    ours: Card | None


class Registry:
    """Holds the foreign cards.  `own_id` is never taken in."""

    def __init__(self, own_id: str, limits: FleetLimits) -> None:
        self._own_id = own_id
        self._limits = limits
        self._cards: dict[bytes, Card] = {}  # by the node_id's bytes, as frames carry it
        self._dropped: dict[bytes, Dropped] = {}
        self._held_bytes = 0
        # Bounds that tell without a scan that nothing is over: no card ends before the first,
        # none is stamped after the second.
        self._first_end_unix = float("inf")
        self._last_stamp_unix = float("-inf")
        self._views: tuple[bytes, bytes] | None = None  # for peers near, for peers elsewhere
        self.rejections: dict[Reason, int] = dict.fromkeys(REASONS, 0)

    def __len__(self) -> int:
        return len(self._cards)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def merge(self, frames: Iterable[bytes], now_unix: float) -> Merged:
        """Take in what is newer; no card, however bad, keeps the others out.  Spec: F-01 … F-04."""
        self.sweep(now_unix)
        joined: list[Card] = []
        bad: list[Bad] = []
        ours: Card | None = None
        num_newer = 0
        for frame in frames:
            key = peeked_id(frame)
            held = self._cards.get(key)
            if held is not None and held.frame == frame:
                continue
            newer = None if held is None else restamped(held, frame)
            if newer is not None and held is not None and self._refresh(key, held, newer, now_unix):
                num_newer += 1
                continue
            card = self._judged(newer, frame, now_unix)
            if isinstance(card, Card) and card.node_id == self._own_id:
                ours = card if ours is None or beats(card, ours) else ours
                continue
            fate = card if isinstance(card, Bad) else self._take(card, now_unix)
            if isinstance(fate, Bad):
                self.rejections[fate.reason] += 1
                bad.append(fate)
            elif fate != "known":
                num_newer += 1
                if fate == "joined" and isinstance(card, Card):
                    joined.append(card)
        return Merged(tuple(joined), num_newer, tuple(bad), ours)

    def _refresh(self, key: bytes, held: Card, newer: Card, now_unix: float) -> bool:
        """Take a card that only re-announces the held one; false when it is not for sure newer.

        The common case, so it is short: nothing else about the card needs judging again, it
        ends no sooner than the held one, and takes the same room.
        """
        stamp = newer.announced_at_unix
        latest = now_unix + self._limits.max_ahead_s
        if not held.announced_at_unix < stamp <= latest or newer.is_expired(now_unix):
            return False
        self._cards[key] = newer
        if stamp > self._last_stamp_unix:
            self._last_stamp_unix = stamp
        self._views = None
        return True

    def _judged(self, newer: Card | None, frame: bytes, now_unix: float) -> Card | Bad:
        if newer is not None and newer.announced_at_unix <= now_unix + self._limits.max_ahead_s:
            return newer  # NaN and +inf fail the test and get their reason from decode
        return decode(frame, now_unix=now_unix, limits=self._limits)

    def _take(self, card: Card, now_unix: float) -> Bad | Literal["joined", "newer", "known"]:
        key = card.node_id.encode()
        held = self._cards.get(key)
        if held is not None and not beats(card, held):
            return "known"
        if card.is_expired(now_unix):
            return Bad("expired", card.node_id[:32], "its lifetime is over")
        gone = self._dropped.get(key)
        if gone is not None and card.announced_at_unix <= gone.announced_at_unix:
            return Bad("ghost", card.node_id[:32], "a card of that age was dropped before")
        held_bytes = self._held_bytes + len(card.frame) - (len(held.frame) if held else 0)
        # One place and one card's bytes are left for our own card.
        is_full = held is None and len(self._cards) >= self._limits.max_cards - 1
        if is_full or held_bytes > self._limits.max_view_bytes - self._limits.max_card_bytes:
            return Bad("full", card.node_id[:32], f"{len(self._cards)} cards are held")
        self._cards[key] = card
        self._dropped.pop(key, None)
        self._held_bytes = held_bytes
        self._first_end_unix = min(self._first_end_unix, card.expires_at_unix)
        self._last_stamp_unix = max(self._last_stamp_unix, card.announced_at_unix)
        self._views = None
        return "joined" if held is None else "newer"

    def sweep(self, now_unix: float) -> list[Card]:
        """Drop what is over and return it.  Spec: F-04.

        A card from the future (our clock was set back) goes too, and is not remembered: its
        stamp was never believable, and must not keep the owner's true one out.
        """
        latest = now_unix + self._limits.max_ahead_s
        if now_unix <= self._first_end_unix and self._last_stamp_unix <= latest:
            return []
        over = [c for c in self._cards.values() if c.is_expired(now_unix)]
        ahead = [c for c in self._cards.values() if c.announced_at_unix > latest]
        for card in over:
            self._forget(card)
            until = now_unix + self._limits.max_ttl_s
            self._dropped[card.node_id.encode()] = Dropped(card.announced_at_unix, until)
        for card in ahead:
            self._forget(card)
        self._trim_dropped(now_unix)
        cards = self._cards.values()
        self._first_end_unix = min((c.expires_at_unix for c in cards), default=float("inf"))
        self._last_stamp_unix = max((c.announced_at_unix for c in cards), default=float("-inf"))
        return over + ahead

    def _forget(self, card: Card) -> None:
        if self._cards.pop(card.node_id.encode(), None) is not None:
            self._held_bytes -= len(card.frame)
            self._views = None

    def _trim_dropped(self, now_unix: float) -> None:
        latest = now_unix + self._limits.max_ahead_s
        self._dropped = {
            key: gone
            for key, gone in self._dropped.items()
            if now_unix <= gone.until_unix and gone.announced_at_unix <= latest
        }
        while len(self._dropped) > self._limits.max_dropped_stamps:
            del self._dropped[next(iter(self._dropped))]

    def live(self, now_unix: float) -> list[Card]:
        """The cards that are not over, by node_id."""
        self.sweep(now_unix)
        return [self._cards[key] for key in sorted(self._cards)]

    def view(self, now_unix: float, *, is_near: bool) -> bytes:
        """The live cards as the field of a message; cached until one changes.

        A peer on another machine (not `is_near`) is spared the cards whose loopback address
        would lead it to itself.  Spec: F-03, F-13, F-14.
        """
        self.sweep(now_unix)
        if self._views is None:
            cards = self._cards.values()
            near = b"".join([card.frame for card in cards])
            far = b"".join([card.frame for card in cards if card.offer.reach != "near"])
            self._views = near, far
        return self._views[0 if is_near else 1]

    def dropped_stamp(self, node_id: str) -> float | None:
        """The stamp of the card that was dropped for `node_id` and is still remembered."""
        gone = self._dropped.get(node_id.encode())
        return None if gone is None else gone.announced_at_unix


__all__ = ["Dropped", "Merged", "Registry"]
