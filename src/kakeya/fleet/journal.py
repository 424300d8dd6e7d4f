"""What the fleet tells its operator: changes only, and every complaint once.

Knows no network and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from kakeya.fleet.card import Bad, Card, Offer

log = structlog.get_logger(__name__)

# More changes than this at one time are counted in one line: a line costs about 50 µs.
MAX_LINES = 16


class Journal:
    """Remembers what was said.  At most `max_once` complaints are kept apart, then no more."""

    def __init__(self, *, max_once: int) -> None:
        self._max_once = max_once
        self._said: set[tuple[str, str]] = set()
        self._shown: dict[str, str] = {}
        self._shown_conflict = ""

    def show_nodes(self, live: Iterable[Card]) -> None:
        """Say who came, moved and went since the last time."""
        here = {card.node_id: card.offer.grpc_address for card in live}
        came = [node_id for node_id, at in here.items() if self._shown.get(node_id) != at]
        gone = [node_id for node_id in self._shown if node_id not in here]
        for node_id in came[:MAX_LINES]:
            log.info("a node is here", node_id=node_id, address=here[node_id])
        for node_id in gone[:MAX_LINES]:
            log.info("a node is gone", node_id=node_id)
        if max(len(came), len(gone)) > MAX_LINES:
            log.info("many nodes came or went", num_came=len(came), num_gone=len(gone))
        self._shown = here

    def show_conflict(self, own: Offer, other_address: str) -> None:
        """Raise the alarm when a second node has our id.  Spec: F-09."""
        if other_address and not self._shown_conflict:
            log.error(
                "two nodes have this node's id; give one another --node-id",
                node_id=own.node_id,
                address=own.grpc_address,
                other_address=other_address,
            )
        self._shown_conflict = other_address

    def show_bad(self, cards: Iterable[Bad]) -> None:
        """Complain of cards that were not taken, once for a node and reason.  Spec: F-01."""
        # The other three are a rule at work or the same for all: only counted.
        told = [bad for bad in cards if bad.reason not in ("expired", "ghost", "full")]
        for bad in told[:MAX_LINES]:
            self.once(bad.node_id, bad.reason, "a card was not taken", bad.why)

    def once(self, whom: str, what: str, event: str, why: str) -> None:
        """Log a warning unless it was logged before."""
        if (whom, what) not in self._said and len(self._said) < self._max_once:
            self._said.add((whom, what))
            log.warning(event, about=whom, reason=what, why=why)
