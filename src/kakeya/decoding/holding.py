"""Which session a generation drafts on: the best place that has one, replaced beside the loop.

While it drafts on one session, another may be on its way to a place that comes earlier in the
order.  Waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.failover import Circuits
from kakeya.decoding.keeper import Course, HeldSession, Keeper
from kakeya.decoding.source import DraftFailedError, Place
from kakeya.errors import Refused


@dataclass(slots=True)
class Holding:
    """The sessions of one generation: at most one in use and one on its way.

    note: told of every session that failed, once.
    """

    keeper: Keeper
    course: Course
    circuits: Circuits
    limits: DecodingLimits
    now: Callable[[], float]
    note: Callable[[Place, DraftFailedError], None]
    _held: HeldSession | None = None
    _coming: HeldSession | None = None

    def usable(self) -> HeldSession | None:
        """The session to draft on now."""
        return self._held if self._held is not None and self._held.is_usable else None

    def grew(self) -> None:
        """The generation's aux has grown."""
        for each in (self._held, self._coming):
            if each is not None:
                each.grew()

    def look(self, places: Sequence[Place]) -> None:
        """Let go of what failed, take what became better, and begin to open what is due."""
        self._held = self._unless_failed(self._held)
        self._coming = self._unless_failed(self._coming)
        if self._coming is not None and self._coming.is_live:
            self._release(self._held)
            self._held, self._coming = self._coming, None
        if self._coming is None:
            place = self._due(places)
            if place is not None:
                self._coming = self._open(place)

    def at(self, place: Place) -> HeldSession | None:
        """The session at `place`, begun now where there is none; None where it cannot be."""
        for each in (self._held, self._coming):
            if each is not None and each.place == place:
                return each
        self._release(self._coming)
        self._coming = self._open(place)
        return self._coming

    def fail(self, held: HeldSession, failure: DraftFailedError) -> None:
        """A draft of `held` failed, which was noted already."""
        self._lost(held.place, failure)
        self._release(held)
        self._held = None if self._held is held else self._held
        self._coming = None if self._coming is held else self._coming

    def release(self) -> None:
        """End all of it: the generation is over."""
        self._release(self._held)
        self._release(self._coming)
        self._held = self._coming = None

    def _due(self, places: Sequence[Place]) -> Place | None:
        """The first place that is better than the one in use and may be tried now."""
        now_s = self.now()
        for place in places:
            if place.dflash is None:
                continue
            if self._held is not None and self._held.place == place:
                return None
            known = set(place.dflash.aux_layers) <= set(self.course.aux.layers)
            if known and self.circuits.of(place).may_open(now_s, place.heard_unix):
                return place
        return None

    def _open(self, place: Place) -> HeldSession | None:
        try:
            held = self.keeper.hold(place, self.course)
        except Refused as refused:
            self._lost(place, DraftFailedError(refused.status.lower(), refused.why))
            return None
        held.look()
        return held

    def _unless_failed(self, held: HeldSession | None) -> HeldSession | None:
        if held is None or held.failure is None:
            return held
        self._lost(held.place, held.failure)
        self.note(held.place, held.failure)
        return None

    def _lost(self, place: Place, failure: DraftFailedError) -> None:
        circuit = self.circuits.of(place)
        lost = circuit.lost_session(self.now(), self.limits, place.heard_unix)
        self.circuits.put(place, lost)

    @staticmethod
    def _release(held: HeldSession | None) -> None:
        if held is not None:
            held.release()


__all__ = ["Holding"]
