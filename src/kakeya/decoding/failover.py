"""Who is asked for drafts: the order of placement, minus those that failed lately.

A circuit per proposer (closed → open → half-open) is arithmetic on a timestamp.  A proposer that
has not answered yet starts half-open: it is probed beside the verifier's own work, so a dead one
never costs a wait.  Waits for nothing itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.keeper import Keeper
from kakeya.decoding.source import BlockSource, Place, Places

NUM_TRIPS = 7
# Round trips to know before a proposer is judged by them, and how old the last may get: the
# first one holds a dial and the indexing of the whole prompt.
MIN_TRIPS = 3
# What DraftOn may be besides a node_id.
DRAFT_ON = ("auto", "local", "remote")


@dataclass(frozen=True, slots=True)
class Circuit:
    """closed: is asked and waited for.  Probed not before `probe_at_s`.

    trips_s: the latest round trips (s), the last of them at `answered_at_s`.  failures counts in
    a row.
    """

    is_closed: bool = False
    failures: int = 0
    late: int = 0
    probe_at_s: float = float("-inf")
    trips_s: tuple[float, ...] = ()
    answered_at_s: float = float("-inf")
    # The owner's latest announcement when it failed; a later one means that it may be back.
    heard_unix: float = float("-inf")

    @property
    def trip_s(self) -> float:
        return median(self.trips_s) if self.trips_s else 0.0

    def is_due(self, now_s: float, limits: DecodingLimits) -> bool:
        """Whether to probe now: half-open, or closed and its round trip is not well known."""
        if self.is_closed:
            is_old = now_s - self.answered_at_s >= limits.refresh_trip_s
            return now_s >= self.probe_at_s and (is_old or len(self.trips_s) < MIN_TRIPS)
        return now_s >= self.probe_at_s

    def answered(self, now_s: float, trip_s: float) -> Circuit:
        trips = (*self.trips_s, trip_s)[-NUM_TRIPS:]
        return Circuit(is_closed=True, trips_s=trips, answered_at_s=now_s)

    def was_late(self, now_s: float, limits: DecodingLimits) -> Circuit:
        if self.late + 1 >= limits.max_late:
            return self.failed(now_s, limits)
        return replace(self, late=self.late + 1)

    def failed(self, now_s: float, limits: DecodingLimits) -> Circuit:
        """Open at once; the next probe after the back-off."""
        wait_s = limits.circuit_backoff_s * 2.0 ** min(self.failures, 30)
        wait_s = min(wait_s, limits.max_circuit_backoff_s)
        # What it measured before says nothing about how it will be when it returns.
        return Circuit(failures=self.failures + 1, probe_at_s=now_s + wait_s)

    def lost_session(self, now_s: float, limits: DecodingLimits, heard_unix: float) -> Circuit:
        """Open; a new session may be tried soon, for that costs the loop no waiting."""
        wait_s = limits.session_backoff_s * 2.0 ** min(self.failures, 30)
        wait_s = min(wait_s, limits.max_session_backoff_s)
        return Circuit(failures=self.failures + 1, probe_at_s=now_s + wait_s, heard_unix=heard_unix)

    def may_open(self, now_s: float, heard_unix: float) -> bool:
        """Whether a session may be tried now."""
        return self.is_closed or now_s >= self.probe_at_s or heard_unix > self.heard_unix > 0

    def unanswered(self, now_s: float, limits: DecodingLimits) -> Circuit:
        """A probe got no answer within the work beside it; the first few are repeated at once."""
        if self.is_closed:
            # Only its round trip was asked for, which can wait; a draft that fails will tell.
            return replace(self, probe_at_s=now_s + limits.refresh_trip_s)
        if self.late + 1 < limits.max_free_probes:
            return replace(self, late=self.late + 1)
        return self.failed(now_s, limits)


class Circuits:
    """The circuits of one node's peers, shared by its generations; at most `max_circuits`."""

    def __init__(self, limits: DecodingLimits) -> None:
        self.limits = limits
        self._circuits: OrderedDict[Place, Circuit] = OrderedDict()

    def of(self, place: Place) -> Circuit:
        return self._circuits.get(place, Circuit())

    def put(self, place: Place, circuit: Circuit) -> None:
        self._circuits[place] = circuit
        self._circuits.move_to_end(place)
        if len(self._circuits) > self.limits.max_circuits:
            self._circuits.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Standing:
    """The remote proposers at one moment, in placement's order."""

    usable: tuple[BlockSource, ...]
    due: tuple[BlockSource, ...]


@dataclass(frozen=True, slots=True)
class Peers:
    """The remote proposers a node knows of, and how to call them."""

    places: Places
    open_source: Callable[[Place], BlockSource]
    circuits: Circuits
    # Holds the sessions of places with a DFlash drafter; None: such places are passed over.
    keeper: Keeper | None = None


def allowed(places: Sequence[Place], *, draft_on: str, self_node_id: str) -> tuple[Place, ...]:
    """The places that `draft_on` (auto, local, remote or a node_id) permits, in order.

    This node's own n-gram needs no place; its own models are such.
    """
    own = tuple(
        place
        for place in places
        if place.node_id == self_node_id and (place.dflash is not None or place.prefix is not None)
    )
    others = [place for place in places if place.node_id != self_node_id]
    if draft_on == "local":
        return own
    if draft_on in DRAFT_ON:
        return (*others, *(own if draft_on == "auto" else ()))
    if draft_on == self_node_id:
        return own
    return tuple(place for place in others if place.node_id == draft_on)


def standing(
    peers: Peers, places: Sequence[Place], now_s: float, *, is_insisted: bool = False
) -> Standing:
    """Whom to ask now and whom to probe.

    is_insisted: models that draft by prefix are asked without a probe, once their back-off is over.
    """
    circuits = peers.circuits
    places = [place for place in places if place.dflash is None]
    due = [place for place in places if circuits.of(place).is_due(now_s, circuits.limits)]
    usable = [
        place
        for place in places
        if circuits.of(place).is_closed
        or (is_insisted and place.prefix is not None and place in due)
    ]
    due = [place for place in due if place not in usable or circuits.of(place).is_closed]
    return Standing(
        usable=tuple(peers.open_source(place) for place in usable),
        due=tuple(peers.open_source(place) for place in due[: circuits.limits.max_probes]),
    )


__all__ = ["DRAFT_ON", "Circuit", "Circuits", "Peers", "Standing", "allowed", "standing"]
