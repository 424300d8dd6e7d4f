"""The proposers of the fleet as the loop sees them: drafters that fit first, then by prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from kakeya.config.settings import Settings
from kakeya.decoding import Catalog, Circuits, DflashFit, Keeper, Peers, Place, remote_sources
from kakeya.decoding.catalog import VerifierFacts, fit_of, misfit
from kakeya.decoding.session import DflashStub
from kakeya.drafting.ngram import NGRAM
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, Model
from kakeya.fleet.membership import Fleet
from kakeya.fleet.placement import Choice
from kakeya.node.dflash import Dflash
from kakeya.rpc.channel import Channels
from kakeya.wire.pb.kakeya.v1.distributed_grpc import (
    DFlashProposerServiceStub,
    ProposerServiceStub,
)

FIRST, LATER = 0, 1


class Proposers:
    """Who may draft for this node's verifier, in placement's order."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        catalog: Catalog,
        channels: Channels,
        dflash: Dflash,
        facts: Callable[[], VerifierFacts | None],
    ) -> None:
        self._fleet = fleet
        self._catalog = catalog
        self._channels = channels
        self._dflash = dflash
        self._facts = facts
        self._heard_unix: dict[str, float] = {}  # by address

    def places(self) -> list[Place]:
        """Drafters that fit, this node's own last; then the n-gram proposers of others."""
        return [*self._drafters(), *self._ngrams()]

    def prefers(self, grpc_address: str, model: Model) -> int:
        """Placement's rank of a model at an address: a drafter that fits goes first."""
        if model.role != ROLE_PROPOSER or model.model_id == NGRAM:
            return LATER
        facts = self._facts()
        if facts is None or self._fit(grpc_address, model.model_id, facts) is None:
            return LATER
        return FIRST

    def stub(self, place: Place) -> DflashStub:
        """What a session at `place` is driven through; this node's own without a connection."""
        if place.node_id == self._fleet.node_id:
            return self._dflash.service
        # The channel takes bulk messages (wire/bulk) in the place of the generated ones.
        return cast(DflashStub, DFlashProposerServiceStub(self._channels.to(place.address)))

    def _drafters(self) -> list[Place]:
        facts = self._facts()
        if facts is None:
            return []
        choices = self._choices(lambda model: model.model_id != NGRAM)
        self._note_news(choices)
        fits = [self._fit(each.grpc_address, each.model.model_id, facts) for each in choices]
        pairs = zip(choices, fits, strict=True)
        return [_place(choice, fit) for choice, fit in pairs if fit is not None]

    def _ngrams(self) -> list[Place]:
        choices = self._choices(lambda model: model.model_id == NGRAM)
        return [_place(choice, None) for choice in choices if not choice.is_self]

    def _choices(self, accepts: Callable[[Model], bool]) -> tuple[Choice, ...]:
        try:
            return self._fleet.plan(ROLE_PROPOSER, "", accepts).choices
        except Refused:
            return ()

    def _fit(self, address: str, model_id: str, facts: VerifierFacts) -> DflashFit | None:
        """How to drive a drafter; this node knows its own, and asks the others."""
        if address != self._fleet.own_card().offer.grpc_address:
            return self._catalog.fit(address, model_id, facts)
        own = next((card for card in self._dflash.cards if card.model_id == model_id), None)
        return fit_of(own) if own is not None and not misfit(own, facts) else None

    def _note_news(self, choices: Sequence[Choice]) -> None:
        """A node that announces itself anew may be back: its address is dialled at once again."""
        heard_unix = {each.grpc_address: each.announced_at_unix for each in choices}
        for address, at_unix in heard_unix.items():
            if at_unix > self._heard_unix.get(address, at_unix):
                self._channels.to(address).forgive()
        self._heard_unix = heard_unix


def peers_of(proposers: Proposers, channels: Channels, settings: Settings, keeper: Keeper) -> Peers:
    return Peers(
        places=proposers.places,
        open_source=remote_sources(lambda address: ProposerServiceStub(channels.to(address))),
        circuits=Circuits(settings.decoding),
        keeper=keeper,
    )


def _place(choice: Choice, fit: DflashFit | None) -> Place:
    return Place(
        choice.node_id,
        choice.grpc_address,
        choice.model.model_id,
        dflash=fit,
        heard_unix=choice.announced_at_unix,
    )


__all__ = ["Proposers", "peers_of"]
