"""The ticker: calls peers, takes in their views, keeps our own card fresh.

Acts; what to do is decided in own, registry, peers and address.  Rules F-05 … F-14.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog
import trio

from kakeya.config.fleet import FleetLimits
from kakeya.errors import demand
from kakeya.fleet.address import Listening, advertised, kind_of, parse, reach_of
from kakeya.fleet.calls import CallFailed, PeerCalls
from kakeya.fleet.card import Card, claimed
from kakeya.fleet.discovery import Route
from kakeya.fleet.frames import split
from kakeya.fleet.journal import Journal
from kakeya.fleet.own import OwnCard
from kakeya.fleet.peers import (
    Candidates,
    Contact,
    PeerBook,
    Target,
    delay_s,
    stretch,
    targets_of_leave,
    targets_of_push,
    targets_of_tick,
)
from kakeya.fleet.registry import Registry
from kakeya.fleet.store import Saved, Store

log = structlog.get_logger(__name__)

# The peer was reached and is one of us; it only would not take this call.
ANSWERED = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "INTERNAL", "UNKNOWN", "ABORTED")

Choose = Callable[[Candidates, random.Random, FleetLimits], list[Target]]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the ticker acts through."""

    calls: PeerCalls
    route: Route
    store: Store
    wall: Callable[[], float]
    rng: random.Random


class Gossip:
    """One node's part in the exchange of cards."""

    def __init__(
        self,
        *,
        own: OwnCard,
        registry: Registry,
        book: PeerBook,
        around: Surroundings,
        limits: FleetLimits,
    ) -> None:
        self._own = own
        self._own_id = own.offer.node_id
        self._registry = registry
        self._book = book
        self._around = around
        self._limits = limits
        self._listening = Listening("", 0, "")
        self._wake = trio.Event()
        self._last_said: Card | None = None
        self._journal = Journal(max_once=limits.max_logged_rejections)
        self.exchanges = {"ok": 0, "failed": 0}

    def listens_on(self, listening: Listening) -> None:
        """Say where the node is bound; needed before anything is sent."""
        self._listening = listening
        near = [listening.host if kind_of(listening.host) == "loopback" else ""]
        near += [seed for seed in self._book.seeds if reach_of(seed) == "near"]
        self._book.loopback_is_near = self._book.loopback_is_near or any(near)
        address = advertised(listening, current=self._own.offer.grpc_address, source="")
        if self._own.move_to(address):
            self._own.issue(self._around.wall())

    # --- the ticker

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tick until cancelled.  Spec: F-06, F-07."""
        limits, rng = self._limits, self._around.rng
        task_status.started()
        # Nodes that are started together do not call together.
        await trio.sleep(rng.random() * limits.interval_s / 10)
        due_s = trio.current_time() + rng.random() * limits.interval_s
        await self._round(targets_of_tick)
        while True:
            with trio.move_on_at(due_s):
                await self._wake.wait()
            if self._own.is_leaving:
                await trio.sleep_forever()  # the last card has been said
            if trio.current_time() >= due_s:
                due_s = trio.current_time() + delay_s(len(self._registry) + 1, rng, limits)
                await self._round(targets_of_tick)
            else:
                self._wake = trio.Event()
                await self._round(targets_of_push)
                await trio.sleep(limits.interval_s / 10)  # news of one moment go out together

    def push_soon(self) -> None:
        """Let the ticker call a few peers now."""
        self._wake.set()

    async def leave(self) -> None:
        """Say the last card to seeds and peers, all at once, within one deadline.  Spec: F-08."""
        self._last_said = self._own.leave(self._around.wall())
        self._wake.set()
        await self._exchange_with_all(self._targets(targets_of_leave), b"")
        await self.persist()

    async def _round(self, choose: Choose) -> None:
        await self._keep_address()
        if self._own.is_leaving:
            return
        num_nodes = len(self._registry) + 1
        ttl_s = min(self._limits.ttl_s * stretch(num_nodes, self._limits), self._limits.max_ttl_s)
        self._own.live_for(ttl_s)
        # A card stamped just now beats every other with our id before we see it.  So now and then,
        # and at every tick once there was a sign of one, a peer gets the last card first, and a
        # second node with our id shows.  Spec: F-09.
        listens = self._around.rng.random() < self._limits.listen_probability
        listens = listens or self._own.is_contested(self._around.wall())
        before = self.own_card().frame if listens else b""
        self._own.issue(self._around.wall())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.persist)
            nursery.start_soon(self._exchange_with_all, self._targets(choose), before)
        self._journal.show_nodes(self._registry.live(self._around.wall()))

    def _targets(self, choose: Choose) -> list[Target]:
        now_unix = self._around.wall()
        live = self._registry.live(now_unix)
        self._book.refresh(live, now_unix)
        who = self._book.candidates(live, self._own.offer.grpc_address)
        return choose(who, self._around.rng, self._limits)

    async def persist(self) -> None:
        """Write down our last stamp and where peers are; a full disk is logged, no more."""
        saved = Saved(self._own_id, self._own.last_stamp_unix, self._book.remembered)
        try:
            await self._around.store.save(saved)
        except OSError as error:
            self._journal.once("store", "OSError", "the fleet's state was not saved", str(error))

    # --- one exchange

    async def _exchange_with_all(self, targets: Sequence[Target], before: bytes) -> None:
        """Call all side by side; `before`, when given, is an older card for the first of them."""
        async with trio.open_nursery() as nursery:
            for n, target in enumerate(targets):
                nursery.start_soon(self._contained, target, before if n == 0 else b"")

    async def _contained(self, target: Target, before: bytes) -> None:
        try:
            if before:
                await self.exchange_with(target, own_frame=before)
            await self.exchange_with(target, own_frame=b"")
        except Exception as error:
            self.exchanges["failed"] += 1
            log.error("an exchange broke", address=target.grpc_address, exc_info=error)

    async def exchange_with(self, target: Target, *, own_frame: bytes) -> None:
        """One push-pull with a peer, and what it showed noted.  Spec: F-10, F-11.

        `own_frame` stands in for our current card unless it is b"".
        """
        address = target.grpc_address
        try:
            with trio.fail_after(self._limits.exchange_deadline_s):
                view = await self._ask(target, own_frame)
        except trio.TooSlowError:
            why = f"no answer within {self._limits.exchange_deadline_s:g} s"
            return self._note_failure(address, CallFailed("DEADLINE_EXCEEDED", why))
        except CallFailed as failure:
            return self._note_failure(address, failure)
        parts = split(view, max_cards=self._limits.max_cards)
        if parts.is_broken:
            self._journal.once(
                address, "view", "a peer answered with something that is no view", ""
            )
        self._registry.rejections["size"] += parts.has_more
        await self.absorb(parts.frames)
        self.exchanges["ok"] += 1
        self.note_answer(address)

    async def _ask(self, target: Target, own_frame: bytes) -> bytes:
        """The peer's view, b"" when the peer is ourselves.  Raises CallFailed."""
        address = parse(target.grpc_address)
        if address is None:
            raise CallFailed("INVALID_ARGUMENT", "is not host:port")
        source = await self._around.route(address.host, address.port)
        if not source:
            raise CallFailed("UNAVAILABLE", "no route or no such name")
        self._take_address(source)
        if self._is_probe_due(target) and await self._probe(target):
            return b""
        view = self.view(is_near=kind_of(source) == "loopback", own_frame=own_frame)
        return await self._around.calls.exchange(target.grpc_address, view)

    def _is_probe_due(self, target: Target) -> bool:
        known = self._book.contact(target.grpc_address)
        is_old = trio.current_time() - known.probed_at_s >= self._limits.probe_every_s
        is_other = target.node_id not in ("", known.node_id)
        return is_old or is_other or bool(known.trouble)

    async def _probe(self, target: Target) -> bool:
        """Learn who answers and how its clock runs; true when that is ourselves.  Spec: F-12."""
        sent_unix, sent_s = self._around.wall(), trio.current_time()
        answer = await self._around.calls.probe(target.grpc_address)
        now_s = trio.current_time()
        frames = split(answer, max_cards=1).frames
        claim = claimed(frames[0]) if frames else None
        if claim is None:
            raise CallFailed("INTERNAL", "answered a probe with something that is no card")
        is_own_id = claim.node_id == self._own_id
        if is_own_id and claim.grpc_address != self._own.offer.grpc_address:
            return False  # a second node with our id: the exchange will show
        if target.node_id not in ("", claim.node_id):
            self._book.forget(target.grpc_address)
            raise CallFailed("NOT_FOUND", f"{claim.node_id[:32]} lives there now")
        skew_s = claim.announced_at_unix - (sent_unix + (now_s - sent_s) / 2)
        self._note_skew(target.grpc_address, claim.node_id, skew_s if math.isfinite(skew_s) else 0)
        return is_own_id

    def _note_skew(self, address: str, node_id: str, skew_s: float) -> None:
        known = self._book.contact(address)
        is_skewed = abs(skew_s) > self._limits.ttl_s / 4
        if is_skewed and not known.is_skewed:
            log.warning("a peer's clock is off", node_id=node_id, skew_s=round(skew_s, 1))
        now_s = trio.current_time()
        self._book.note(
            address,
            replace(known, node_id=node_id, probed_at_s=now_s, skew_s=skew_s, is_skewed=is_skewed),
        )

    def _note_failure(self, address: str, failure: CallFailed) -> None:
        self.exchanges["failed"] += 1
        if failure.status in ANSWERED:
            self._journal.once(
                address, failure.status, "a peer would not take our view", failure.why
            )
            return
        self.note_trouble(address, failure.why or failure.status)

    def note_trouble(self, address: str, why: str) -> None:
        """A call from here to `address` failed.  Its card stays.  Spec: F-11."""
        known = self._book.contact(address)
        if self._book.note(address, replace(known, trouble=why)):
            log.info("a peer cannot be reached from here", address=address, why=why)

    def note_answer(self, address: str) -> None:
        """A call from here to `address` was answered."""
        known: Contact = self._book.contact(address)
        if self._book.note(address, replace(known, trouble="")):
            log.info("a peer answers", address=address, node_id=known.node_id)

    # --- views in and out

    async def absorb(self, frames: Sequence[bytes]) -> None:
        """Merge a view a chunk at a time, with a look at the event loop between.  Spec: F-13."""
        for start in range(0, len(frames), self._limits.chunk_cards):
            now_unix = self._around.wall()
            chunk = frames[start : start + self._limits.chunk_cards]
            merged = self._registry.merge(chunk, now_unix)
            self._journal.show_bad(merged.bad)
            if merged.ours is not None and self._own.notice(merged.ours, now_unix):
                self.push_soon()
            await trio.lowlevel.checkpoint()
        self._journal.show_conflict(self._own.offer, self._own.conflict(self._around.wall()))

    def view(self, *, is_near: bool, own_frame: bytes = b"") -> bytes:
        """All that we hold, our own card (or `own_frame`) first."""
        now_unix = self._around.wall()
        return (own_frame or self.own_card().frame) + self._registry.view(now_unix, is_near=is_near)

    def own_card(self) -> Card:
        """Our card, never older than three intervals even when the ticker stands still.

        The last card of a node that leaves is left to lapse.
        """
        if self._last_said is not None:
            return self._last_said
        stretched = stretch(len(self._registry) + 1, self._limits)
        max_age_s = min(3 * self._limits.interval_s * stretched, self._own.offer.ttl_s / 2)
        return self._own.current(self._around.wall(), max_age_s=max_age_s)

    async def answer_exchange(self, frames: Sequence[bytes], peer_host: str) -> bytes:
        """Take a caller's cards in, return the merged view.  Raises Refused."""
        is_near = await self._meet(peer_host)
        await self.absorb(frames)
        return self.view(is_near=is_near)

    async def answer_probe(self, peer_host: str) -> bytes:
        """A freshly stamped card of ours, as a view of one.  Raises Refused."""
        await self._meet(peer_host)
        return self._own.issue(self._around.wall()).frame

    async def _meet(self, peer_host: str) -> bool:
        """Have an address for a caller; true when it is on this machine.  Spec: F-14."""
        is_near = peer_host == "" or kind_of(peer_host) == "loopback"
        self._book.loopback_is_near = self._book.loopback_is_near or is_near
        source = peer_host or "127.0.0.1"
        current = self._own.offer.grpc_address
        derives = kind_of(self._listening.host) == "wildcard" and not self._listening.advertise
        if not is_near and derives and reach_of(current) != "far":
            # Port 9 is never called: only the way to the host is asked for.
            with trio.move_on_after(self._limits.exchange_deadline_s):
                source = await self._around.route(peer_host, 9)
        try:
            self._take_address(source)
        except CallFailed as failure:
            demand(False, failure.status, failure.why)
        return is_near

    # --- our address

    def _take_address(self, source: str) -> None:
        """Put on our card what fits a peer reached from `source`.  Raises CallFailed."""
        current = self._own.offer.grpc_address
        address = advertised(self._listening, current=current, source=source)
        if not address:
            host = self._listening.host
            raise CallFailed(
                "FAILED_PRECONDITION",
                f"this node listens on {host} only and has no address for other machines; "
                "start it with --host or --advertise",
            )
        if self._own.move_to(address):
            self._own.issue(self._around.wall())

    async def _keep_address(self) -> None:
        """Let go of a derived address that this machine no longer has."""
        current = parse(self._own.offer.grpc_address)
        is_derived = kind_of(self._listening.host) == "wildcard" and not self._listening.advertise
        if current is None or not is_derived or kind_of(current.host) != "literal":
            return
        source = ""
        with trio.move_on_after(self._limits.exchange_deadline_s):
            source = await self._around.route(current.host, current.port)
        if source and source != current.host:
            log.info("this machine's address changed", was=current.host)
            self._own.move_to("")
            self._around.calls.drop_connections()
