"""The proposers of the fleet as the loop sees them: drafters that fit first, then by prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from kakeya.config.settings import Settings
from kakeya.decoding import (
    Catalog,
    Circuits,
    DflashFit,
    Keeper,
    Peers,
    Place,
    PrefixFit,
    remote_sources,
)
from kakeya.decoding.catalog import (
    VerifierFacts,
    fit_of,
    misfit,
    prefix_fit_of,
    prefix_misfit,
)
from kakeya.decoding.remote import ProposerStub
from kakeya.decoding.session import DflashStub
from kakeya.drafting.ngram import NGRAM
from kakeya.drafting.service import ProposerService
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, Model
from kakeya.fleet.membership import Fleet
from kakeya.fleet.placement import Choice, accepts_all
from kakeya.node.dflash import Dflash
from kakeya.rpc.channel import Channels
from kakeya.wire.pb.kakeya.v1.distributed_grpc import (
    DFlashProposerServiceStub,
    ProposerServiceStub,
)

FIRST, LATER = 0, 1
F = TypeVar("F", DflashFit, PrefixFit)


class Proposers:
    """Who may draft for this node's verifier, in placement's order."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        catalog: Catalog,
        channels: Channels,
        dflash: Dflash,
        drafting: ProposerService,
        facts: Callable[[], VerifierFacts | None],
    ) -> None:
        self._fleet = fleet
        self._catalog = catalog
        self._channels = channels
        self._dflash = dflash
        self._drafting = drafting
        self._facts = facts
        self._heard_unix: dict[str, float] = {}  # by address

    def places(self) -> list[Place]:
        """Drafters that fit, then models that draft by prefix, this node's own last in each; then
        the n-gram proposers of others."""
        return [*self._drafters(), *self._models(), *self._ngrams()]

    def prefers(self, grpc_address: str, model: Model) -> int:
        """Placement's rank of a model at an address: a drafter that fits goes first."""
        if model.role != ROLE_PROPOSER or model.model_id == NGRAM:
            return LATER
        facts = self._facts()
        if facts is None:
            return LATER
        fits = (
            self._fit(grpc_address, model.model_id, facts),
            self._prefix_fit(grpc_address, model.model_id, facts),
        )
        return LATER if fits == (None, None) else FIRST

    def stub(self, place: Place) -> DflashStub:
        """What a session at `place` is driven through; this node's own without a connection."""
        if place.node_id == self._fleet.node_id:
            return self._dflash.service
        # The channel takes bulk messages (wire/bulk) in the place of the generated ones.
        return cast(DflashStub, DFlashProposerServiceStub(self._channels.to(place.address)))

    def prefix_stub(self, address: str) -> ProposerStub:
        """What the proposers at an address are asked through; likewise."""
        if self._is_own(address):
            return self._drafting
        return ProposerServiceStub(self._channels.to(address))

    def _drafters(self) -> list[Place]:
        facts = self._facts()
        if facts is None:
            return []
        self._note_news(self._choices("", lambda model: model.model_id != NGRAM))
        pairs = self._fitting(lambda address, model_id: self._fit(address, model_id, facts))
        return [_place(choice, dflash=fit) for choice, fit in pairs]

    def _models(self) -> list[Place]:
        """Models that draft by prefix."""
        facts = self._facts()
        if facts is None:
            return []
        pairs = self._fitting(lambda address, model_id: self._prefix_fit(address, model_id, facts))
        return [_place(choice, prefix=fit) for choice, fit in pairs]

    def _ngrams(self) -> list[Place]:
        choices = self._choices("", lambda model: model.model_id == NGRAM)
        return [_place(choice) for choice in choices if not choice.is_self]

    def _fitting(self, fit_of_model: Callable[[str, str], F | None]) -> list[tuple[Choice, F]]:
        """Every node's every model that fits, this node's own last, then faster first.

        fit_of_model: of an address and a model_id.
        """
        offers = [card.offer for card in self._fleet.snapshot()]
        fitting = {
            model.model_id
            for offer in offers
            for model in offer.models
            if model.role == ROLE_PROPOSER and model.model_id != NGRAM
            if fit_of_model(offer.grpc_address, model.model_id) is not None
        }
        choices = [choice for each in sorted(fitting) for choice in self._choices(each)]
        choices.sort(key=lambda c: (c.is_self, -c.model.tokens_per_second, -c.memory_bytes))
        pairs = [(c, fit_of_model(c.grpc_address, c.model.model_id)) for c in choices]
        return [(choice, fit) for choice, fit in pairs if fit is not None]

    def _choices(
        self, model_id: str, accepts: Callable[[Model], bool] = accepts_all
    ) -> tuple[Choice, ...]:
        try:
            return self._fleet.plan(ROLE_PROPOSER, model_id, accepts).choices
        except Refused:
            return ()

    def _fit(self, address: str, model_id: str, facts: VerifierFacts) -> DflashFit | None:
        """How to drive a drafter; this node knows its own, and asks the others."""
        if not self._is_own(address):
            return self._catalog.fit(address, model_id, facts)
        own = next((card for card in self._dflash.cards if card.model_id == model_id), None)
        return fit_of(own) if own is not None and not misfit(own, facts) else None

    def _prefix_fit(self, address: str, model_id: str, facts: VerifierFacts) -> PrefixFit | None:
        """How to ask a model that drafts by prefix."""
        if not self._is_own(address):
            return self._catalog.prefix_fit(address, model_id, facts)
        own = next((card for card in self._drafting.cards if card.model_id == model_id), None)
        return prefix_fit_of(own) if own is not None and not prefix_misfit(own, facts) else None

    def _is_own(self, address: str) -> bool:
        return address == self._fleet.own_card().offer.grpc_address

    def _note_news(self, choices: Sequence[Choice]) -> None:
        """A node that announces itself anew may be back: its address is dialled at once again."""
        heard_unix = {each.grpc_address: each.announced_at_unix for each in choices}
        for address, at_unix in heard_unix.items():
            if at_unix > self._heard_unix.get(address, at_unix):
                self._channels.to(address).forgive()
        self._heard_unix = heard_unix


def peers_of(proposers: Proposers, settings: Settings, keeper: Keeper) -> Peers:
    return Peers(
        places=proposers.places,
        open_source=remote_sources(proposers.prefix_stub, settings.decoding.num_steps),
        circuits=Circuits(settings.decoding),
        keeper=keeper,
    )


def _place(
    choice: Choice, *, dflash: DflashFit | None = None, prefix: PrefixFit | None = None
) -> Place:
    return Place(
        choice.node_id,
        choice.grpc_address,
        choice.model.model_id,
        dflash=dflash,
        prefix=prefix,
        heard_unix=choice.announced_at_unix,
    )


__all__ = ["Proposers", "peers_of"]
