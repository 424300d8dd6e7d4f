"""One generation's drafts: whom to ask for how many, waiting no longer than it can pay.

Joins policy and failover to the sources.  Knows nothing of the verifier but its times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.aux_log import AuxLog
from kakeya.decoding.block import Account
from kakeya.decoding.failover import Peers, Standing, allowed, standing
from kakeya.decoding.holding import Holding
from kakeya.decoding.keeper import Course, HeldSession
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
from kakeya.decoding.verify import Aux
from kakeya.drafting.ngram import NGRAM
from kakeya.errors import Refused
from kakeya.verifying.verifier import Bank

log = structlog.get_logger(__name__)

# What acceptance is learnt by: the proposer, and how long a suffix matched (None: unknown).
Kind = tuple[Place, int | None]


# Somebody to ask, and what that promises.
Option = tuple[BlockSource | LocalNgram, Kind, Choice]
# A copy of what followed so many tokens beats a drafter's guess (measured on chat and edits).
MIN_COPY_MATCH_LEN = 2
# However busy the device is with others, a draft is waited for at most so many times longer.
MIN_IDLE = 1 / 16


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
    proposer: str = ""  # the model_id whose drafts are used alone; "": any
    course: Course | None = None  # None: nobody is drafted with in sessions
    num_read: int = 0  # committed positions that the verifier has read
    _holding: Holding | None = None
    _acceptance: dict[Kind, Acceptance] = field(default_factory=dict)
    _places: tuple[Place, ...] = ()
    _places_at_s: float = float("-inf")
    _warned: set[str] = field(default_factory=set)
    # By place: how long the probes took that were cut off too soon to be held against it (s).
    _cut_off_s: dict[Place, float] = field(default_factory=dict)

    def follow(self, course: Course) -> None:
        """Draft in sessions as well, seeded from `course`; where somebody keeps them."""
        if self.peers is None or self.peers.keeper is None:
            return
        self.course = course
        self._holding = Holding(
            keeper=self.peers.keeper,
            course=course,
            circuits=self.peers.circuits,
            limits=self.limits,
            now=self.now,
            note=self._fell_back,
        )

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The verifier layers whose outputs are kept for drafters."""
        return self.course.aux.layers if self.course is not None else ()

    def commit(self, ids: Sequence[int]) -> None:
        self.committed_ids.extend(ids)
        self.local.commit(ids)

    def note_read(self, num_positions: int, aux: Aux) -> None:
        """The verifier has read so many committed positions more; keep their aux, if any."""
        self.num_read += num_positions
        if self._holding is not None and self.course is not None and aux:
            self.course.aux.add(aux)
            self._holding.grew()

    def resume(self, num_positions: int, aux: AuxLog | None) -> None:
        """The verifier need not read the first so many positions.  aux: their rows, if known.

        Without them, and with others than those wanted now, sessions are seeded by reading again.
        """
        self._look_for_places()
        self.num_read = num_positions
        wanted = set(self._wanted_layers())
        head = aux.head(num_positions) if aux is not None else None
        if head is not None and self.course is not None and wanted and wanted <= set(head.layers):
            self.course.aux.begin(head)

    async def banks(self, check: Callable[[Sequence[Bank]], None]) -> tuple[Bank, ...]:
        """The prompt's banks from the first place that has an f_θ and answers.

        check: raises Refused for banks that do not fit the verifier.  Raises Refused(UNAVAILABLE).
        """
        await self._seek_banks()
        failure = DraftFailedError("not_found", "no drafter with an f_θ that fits is known")
        for place in self._places:
            if self._holding is None or place.dflash is None or not place.dflash.restores:
                continue
            held = self._holding.at(place)
            if held is None:
                continue
            try:
                banks = await held.banks()
                check(banks)
                return banks
            except DraftFailedError as error:
                failure = error
            except Refused as refused:
                failure = DraftFailedError("malformed", refused.why)
            self._fell_back(place, failure)
            self._holding.fail(held, failure)
        raise Refused("UNAVAILABLE", f"K/V mode restored got no banks: {failure.why}")

    async def _seek_banks(self) -> None:
        """Wait a little until somebody with an f_θ is known."""
        with trio.move_on_after(self.limits.seek_banks_s):
            while not any(p.dflash is not None and p.dflash.restores for p in self._places):
                self._places_at_s = float("-inf")
                self.standing()
                await trio.sleep(self.limits.seek_banks_every_s)

    def release(self) -> None:
        """The generation is over: its sessions end."""
        if self._holding is not None:
            self._holding.release()

    async def draft(self, max_num_drafts: int) -> Drafted:
        """At most `max_num_drafts` ids from whoever promises most; a failure falls to n-gram."""
        options = self._options(self.standing().usable, max_num_drafts)
        chosen = self._chosen(options)
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
        self._look_for_places()
        if self._holding is not None and self.course is not None:
            if not self.course.aux.layers:
                self._tap(self.course.aux)
            self._holding.look(self._places)
        is_insisted = bool(self.proposer) and self.num_drafts is not None
        return standing(self.peers, self._places, now_s, is_insisted=is_insisted)

    def _look_for_places(self) -> None:
        now_s = self.now()
        if self.peers is None or now_s - self._places_at_s < self.limits.places_every_s:
            return
        self._places = tuple(
            place
            for place in allowed(
                _seen(self.peers), draft_on=self.draft_on, self_node_id=self.local.place.node_id
            )
            if self.proposer in ("", place.model_id)
        )
        self._places_at_s = now_s

    def _tap(self, aux: AuxLog) -> None:
        """From the first drafter on that is seen, keep what the drafters of that moment take."""
        layers = self._wanted_layers()
        if layers:
            aux.tap(layers, self.num_read)

    def _wanted_layers(self) -> list[int]:
        fits = [place.dflash for place in self._places if place.dflash is not None]
        return sorted({layer for fit in fits for layer in fit.aux_layers})

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
            if not settled:
                self._cut_off(place, self.now() - asked_at_s)

    def _cut_off(self, place: Place, elapsed_s: float) -> None:
        """A probe got no answer within the work beside it, which took `elapsed_s`."""
        assert self.peers is not None
        circuits, waited_s = self.peers.circuits, self._cut_off_s.get(place, 0.0) + elapsed_s
        # Nobody answers within no time: short jobs are held against the peer together only.
        counts = elapsed_s >= self.limits.min_draft_wait_s or waited_s >= self.limits.cut_off_s
        self._cut_off_s[place] = 0.0 if counts else waited_s
        if counts:
            circuits.put(place, circuits.of(place).unanswered(self.now(), self.limits))

    def _options(self, usable: Sequence[BlockSource], max_num_drafts: int) -> list[Option]:
        """Every source in order of preference, with what it promises.

        A peer's n-gram would copy what ours would, so ours says whether there is anything to copy.
        """
        match_len = self.local.match_len
        offers: list[tuple[BlockSource | LocalNgram, Kind, float]] = []
        held = self._holding.usable() if self._holding is not None else None
        if held is not None:
            assert self.peers is not None
            trip_s = self.peers.circuits.of(held.place).trip_s
            offers.append((held, (held.place, None), max(trip_s, held.least_trip_s)))
        for source in usable:
            place = source.place
            length = match_len if place.model_id == NGRAM else None
            assert self.peers is not None
            offers.append((source, (place, length), self.peers.circuits.of(place).trip_s))
        is_local_asked = self.draft_on in ("auto", "local") and self.proposer in ("", NGRAM)
        if is_local_asked or not offers:
            offers.append((self.local, (self.local.place, match_len), 0.0))
        return [
            (source, kind, self._promise(source, kind, draft_s, max_num_drafts))
            for source, kind, draft_s in offers
            if kind[1] != 0
        ]

    def _promise(
        self,
        source: BlockSource | LocalNgram,
        kind: Kind,
        draft_s: float,
        max_num_drafts: int,
    ) -> Choice:
        most = min(max_num_drafts, self.limits.max_num_drafts, self._room(source))
        if self.num_drafts is not None:
            return Choice(min(self.num_drafts, max(most, 0)), 1.0)
        return best_choice(
            self.pace, self._acceptance_of(kind), draft_s=draft_s, max_num_drafts=most
        )

    def _room(self, source: BlockSource | LocalNgram) -> int:
        """Drafts a block of `source` can have here."""
        fit = source.place.dflash or source.place.prefix
        if fit is None:
            return self.limits.max_num_drafts
        left = fit.max_context_len - len(self.committed_ids)
        if left < 1 and self._is_news(source.place, "context"):
            log.warning(
                "the text is longer than the drafter's context, the verifier goes on without it",
                model_id=source.place.model_id,
                max_context_len=fit.max_context_len,
            )
        return min(fit.max_num_drafts, left)

    def _chosen(self, options: Sequence[Option]) -> int | None:
        """Whose drafts are worth their time; a session's against the best of the others."""
        choices = [choice for _, _, choice in options]
        is_held = bool(options) and options[0][0].place.dflash is not None
        if is_held and self.num_drafts is not None:
            chosen = self._fixed(options)
        else:
            others = first_worthwhile(choices[is_held:], self.limits)
            chosen = None if others is None else others + is_held
            if is_held and choices[0].num_drafts:
                is_best = chosen is None or choices[0].gain >= choices[chosen].gain
                chosen = 0 if is_best else chosen
        if chosen is None or self.num_drafts is not None:
            return chosen
        if not self.ledger.is_on or self.pace.wants_one:
            return None
        if self.pace.is_stale and choices[chosen].gain < self.limits.clear_gain:
            return None
        return chosen

    def _fixed(self, options: Sequence[Option]) -> int | None:
        """With a given number of drafts: n-gram where two tokens match, else the drafter."""
        with_room = [i for i, (_, _, choice) in enumerate(options) if choice.num_drafts]
        if self.local.match_len >= MIN_COPY_MATCH_LEN and len(with_room) > 1:
            return with_room[1]
        return with_room[0] if with_room else None

    def _alone(self, options: Sequence[Option]) -> Drafted:
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
        after = step(now_s, self.limits)
        if isinstance(source, HeldSession) and self._holding is not None and not after.is_closed:
            self._holding.fail(source, failure)
        else:
            circuits.put(place, after)
        return Drafted(wait_s=max(now_s - asked_at_s, 1e-9))

    def _max_wait_s(self) -> float:
        # Where the device works for others meanwhile, waiting costs that much less.
        idle = max(1.0 - self.pace.company, MIN_IDLE)
        wait_s = self.limits.draft_wait_steps * (self.pace.one_s or 0.0) / idle
        return min(max(wait_s, self.limits.min_draft_wait_s), self.limits.max_draft_wait_s)

    def _fell_back(self, place: Place, failure: DraftFailedError) -> None:
        self.account.fell_back(failure.reason)
        if self._is_news(place, failure.reason):
            log.warning(
                "a draft was not to be had, the generation goes on",
                node_id=place.node_id,
                model_id=place.model_id,
                reason=failure.reason,
                why=failure.why[:200],
            )

    def _is_news(self, place: Place, what: str) -> bool:
        """Whether this was not warned of in this generation before."""
        key = f"{place.node_id} {what}"
        is_news = key not in self._warned
        self._warned.add(key)
        return is_news

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
