"""One generation's drafts: whom to ask for how many, waiting no longer than it can pay.

Joins policy and failover to the sources.  Knows nothing of the verifier but its times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.block import Account
from kakeya.decoding.failover import Peers, Standing, allowed, standing
from kakeya.decoding.policy import (
    ALONE,
    PRIOR_RATES,
    Acceptance,
    Choice,
    Ledger,
    Pace,
    best_choice,
    first_worthwhile,
)
from kakeya.decoding.source import (
    BlockSource,
    DraftFailedError,
    LocalNgram,
    Place,
    is_usable,
)
from kakeya.drafting.ngram import NGRAM
from kakeya.errors import Refused

log = structlog.get_logger(__name__)

# What acceptance is learnt by: the proposer, and how long a suffix matched (None: unknown).
Kind = tuple[Place, int | None]


@dataclass(frozen=True, slots=True)
class Drafted:
    """A usable draft, or none (no ids); `wait_s` was spent on it either way."""

    ids: tuple[int, ...] = ()
    kind: Kind | None = None
    wait_s: float = 0.0


@dataclass(slots=True)
class Drafter:
    """Drafts for one generation.

    committed_ids grows with the generation (`commit`).  num_drafts None: the policy chooses.
    """

    local: LocalNgram
    peers: Peers | None
    draft_on: str
    num_drafts: int | None
    vocab_size: int
    pace: Pace
    account: Account
    limits: DecodingLimits
    now: Callable[[], float]
    committed_ids: list[int]
    ledger: Ledger
    _acceptance: dict[Kind, Acceptance] = field(default_factory=dict)
    _places: tuple[Place, ...] = ()
    _places_at_s: float = float("-inf")
    _warned: set[str] = field(default_factory=set)

    def commit(self, ids: Sequence[int]) -> None:
        self.committed_ids.extend(ids)
        self.local.commit(ids)

    async def draft(self, max_num_drafts: int) -> Drafted:
        """At most `max_num_drafts` ids from whoever promises most; a failure falls to n-gram."""
        options = self._options(self.standing().usable, max_num_drafts)
        chosen = self._chosen([choice for _, _, choice in options])
        if chosen is None:
            return self._alone(options)
        source, kind, choice = options[chosen]
        if isinstance(source, LocalNgram):
            return Drafted(source.draft(choice.num_drafts), kind)
        drafted = await self._ask(source, kind, choice.num_drafts)
        if drafted.ids or not self.local.match_len:
            return drafted
        ids = self.local.draft(choice.num_drafts)
        return Drafted(ids, (self.local.place, self.local.match_len), drafted.wait_s)

    def learn(self, drafted: Drafted, *, num_decided: int, num_accepted: int) -> None:
        """What became of a draft whose block was verified."""
        if drafted.kind is not None and drafted.ids:
            self._acceptance_of(drafted.kind).add(num_decided, num_accepted)

    def judge(self, drafted: Drafted, *, num_ids: int, elapsed_s: float) -> None:
        """Whether drafting goes on, after a block that took `elapsed_s` and gave `num_ids`."""
        if not drafted.ids and not drafted.wait_s:
            self.ledger.add_alone()
            return
        if self.num_drafts is not None:
            return
        gain = self.ledger.add_drafted(num_ids, elapsed_s, self.pace)
        if gain is not None:
            log.info("speculation switched off for a while: it loses", gain=round(gain, 3))

    def standing(self) -> Standing:
        """The peers that may be asked now, and those to probe."""
        if self.peers is None:
            return Standing((), ())
        now_s = self.now()
        if now_s - self._places_at_s >= self.limits.places_every_s:
            self._places = allowed(
                _seen(self.peers), draft_on=self.draft_on, self_node_id=self.local.place.node_id
            )
            self._places_at_s = now_s
        return standing(self.peers, self._places, now_s)

    async def probe(self, source: BlockSource) -> None:
        """Ask for one draft to learn whether and how fast `source` answers; its ids are not used.

        Cancelling it means it did not answer in time.
        """
        assert self.peers is not None
        circuits, place, asked_at_s = self.peers.circuits, source.place, self.now()
        settled = False
        try:
            ids = await source.draft(self.committed_ids, 1)
            now_s, settled = self.now(), True
            if is_usable(ids, num_drafts=1, vocab_size=self.vocab_size):
                circuits.put(place, circuits.of(place).answered(now_s, now_s - asked_at_s))
            else:
                circuits.put(place, circuits.of(place).failed(now_s, self.limits))
        except DraftFailedError:
            settled = True
            circuits.put(place, circuits.of(place).failed(self.now(), self.limits))
        except Exception:
            # The top of a task of its own: a mistake of ours in it must not end the generation.
            log.exception("a probe failed", node_id=place.node_id)
            settled = True
            circuits.put(place, circuits.of(place).failed(self.now(), self.limits))
        finally:
            # Nobody answers within no time: too short a job is not held against the peer.
            if not settled and self.now() - asked_at_s >= self.limits.min_draft_wait_s:
                circuits.put(place, circuits.of(place).unanswered(self.now(), self.limits))

    def _options(
        self, usable: Sequence[BlockSource], max_num_drafts: int
    ) -> list[tuple[BlockSource | LocalNgram, Kind, Choice]]:
        """Every source in order of preference, with what it promises.

        A peer's n-gram would copy what ours would, so ours says whether there is anything to copy.
        """
        match_len = self.local.match_len
        offers: list[tuple[BlockSource | LocalNgram, Kind, float]] = []
        for source in usable:
            place = source.place
            length = match_len if place.model_id == NGRAM else None
            assert self.peers is not None
            offers.append((source, (place, length), self.peers.circuits.of(place).trip_s))
        if self.draft_on in ("auto", "local") or not usable:
            offers.append((self.local, (self.local.place, match_len), 0.0))
        return [
            (source, kind, self._promise(kind, draft_s, max_num_drafts))
            for source, kind, draft_s in offers
            if kind[1] != 0
        ]

    def _promise(self, kind: Kind, draft_s: float, max_num_drafts: int) -> Choice:
        most = min(max_num_drafts, self.limits.max_num_drafts)
        if self.num_drafts is not None:
            return Choice(min(self.num_drafts, most), 1.0)
        return best_choice(
            self.pace, self._acceptance_of(kind), draft_s=draft_s, max_num_drafts=most
        )

    def _chosen(self, choices: Sequence[Choice]) -> int | None:
        chosen = first_worthwhile(choices, self.limits)
        if chosen is None or self.num_drafts is not None:
            return chosen
        if not self.ledger.is_on or self.pace.wants_one:
            return None
        if self.pace.is_stale and choices[chosen].gain < self.limits.clear_gain:
            return None
        return chosen

    def _alone(self, options: Sequence[tuple[BlockSource | LocalNgram, Kind, Choice]]) -> Drafted:
        for _, kind, choice in options:
            if choice == ALONE:
                self._acceptance_of(kind).skip()
        return Drafted()

    async def _ask(self, source: BlockSource, kind: Kind, num_drafts: int) -> Drafted:
        assert self.peers is not None
        circuits, place, asked_at_s = self.peers.circuits, source.place, self.now()
        failure = DraftFailedError("late", "no draft within its wait")
        ids: tuple[int, ...] = ()
        with trio.move_on_after(self._max_wait_s()):
            try:
                ids = await source.draft(self.committed_ids, num_drafts)
                failure = DraftFailedError("malformed", f"{len(ids)} ids, asked for {num_drafts}")
            except DraftFailedError as error:
                failure = error
        now_s = self.now()
        if is_usable(ids, num_drafts=num_drafts, vocab_size=self.vocab_size):
            circuits.put(place, circuits.of(place).answered(now_s, now_s - asked_at_s))
            return Drafted(ids, kind, now_s - asked_at_s)
        self._fell_back(place, failure)
        circuit = circuits.of(place)
        is_late = failure.reason == "late"
        step = circuit.was_late if is_late else circuit.failed
        circuits.put(place, step(now_s, self.limits))
        return Drafted(wait_s=max(now_s - asked_at_s, 1e-9))

    def _max_wait_s(self) -> float:
        wait_s = self.limits.draft_wait_steps * (self.pace.one_s or 0.0)
        return min(max(wait_s, self.limits.min_draft_wait_s), self.limits.max_draft_wait_s)

    def _fell_back(self, place: Place, failure: DraftFailedError) -> None:
        self.account.fell_back(failure.reason)
        key = f"{place.node_id} {failure.reason}"
        if key not in self._warned:
            self._warned.add(key)
            log.warning(
                "a draft was not to be had, the generation goes on",
                node_id=place.node_id,
                model_id=place.model_id,
                reason=failure.reason,
                why=failure.why[:200],
            )

    def _acceptance_of(self, kind: Kind) -> Acceptance:
        if kind not in self._acceptance:
            self._acceptance[kind] = Acceptance(PRIOR_RATES[kind[1]])
        return self._acceptance[kind]


def _seen(peers: Peers) -> Sequence[Place]:
    try:
        return peers.places()
    except Refused:
        return ()  # nobody offers drafts; the n-gram of this host does


__all__ = ["Drafted", "Drafter"]
