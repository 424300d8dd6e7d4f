"""What a drafter fits and takes, as peers ask for it before they open a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from kakeya.drafting.proposer_card import ProposerCard, proposer_message
from kakeya.errors import demand
from kakeya.wire.pb.kakeya.node.v1 import drafters_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.drafters_grpc import DrafterServiceServicer

# Cards of one answer, and layers of one card: more is a mistake or an attack.
MAX_DRAFTERS = 64
MAX_AUX_LAYERS = 64


@dataclass(frozen=True, slots=True)
class DrafterCard:
    """One drafter.  Fields as in drafters.proto."""

    model_id: str
    verifier: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    tokenizer_sha256: str
    aux_layers: tuple[int, ...]
    max_context_len: int
    max_num_drafts: int
    restores: bool
    family: str = ""
    mask_id: int = 0


class DrafterServicer(DrafterServiceServicer):
    """Tells peers which drafters this node serves now."""

    def __init__(
        self,
        drafters: Callable[[], Sequence[DrafterCard]],
        proposers: Callable[[], Sequence[ProposerCard]] = tuple,
    ) -> None:
        super().__init__()
        self._drafters = drafters
        self._proposers = proposers

    async def ListDrafters(  # noqa: N802 - the service's name
        self, input_message: pb.ListDraftersRequest
    ) -> pb.ListDraftersResponse:
        await trio.lowlevel.checkpoint()
        return pb.ListDraftersResponse(
            drafters=[_message(card) for card in self._drafters()],
            proposers=[proposer_message(card) for card in self._proposers()],
        )


def cards_of(response: pb.ListDraftersResponse) -> tuple[DrafterCard, ...]:
    """What a peer says of its drafters.  Raises Refused(INVALID_ARGUMENT) beyond the bounds."""
    demand(
        len(response.drafters) <= MAX_DRAFTERS,
        "INVALID_ARGUMENT",
        f"{len(response.drafters)} drafters, the limit is {MAX_DRAFTERS}",
    )
    return tuple(_card(each) for each in response.drafters)


def _card(message: pb.DrafterCard) -> DrafterCard:
    layers = tuple(message.aux_layers)
    demand(
        1 <= len(layers) <= MAX_AUX_LAYERS,
        "INVALID_ARGUMENT",
        f"{len(layers)} aux layers, it must be 1 to {MAX_AUX_LAYERS}",
    )
    return DrafterCard(
        model_id=message.model_id,
        verifier=message.verifier,
        vocab_size=message.vocab_size,
        hidden_size=message.hidden_size,
        num_layers=message.num_layers,
        tokenizer_sha256=message.tokenizer_sha256,
        aux_layers=layers,
        max_context_len=message.max_context_len,
        max_num_drafts=message.max_num_drafts,
        restores=message.restores,
        family=message.family,
        mask_id=message.mask_id,
    )


def _message(card: DrafterCard) -> pb.DrafterCard:
    return pb.DrafterCard(
        model_id=card.model_id,
        verifier=card.verifier,
        vocab_size=card.vocab_size,
        hidden_size=card.hidden_size,
        num_layers=card.num_layers,
        tokenizer_sha256=card.tokenizer_sha256,
        aux_layers=card.aux_layers,
        max_context_len=card.max_context_len,
        max_num_drafts=card.max_num_drafts,
        restores=card.restores,
        family=card.family,
        mask_id=card.mask_id,
    )


__all__ = ["DrafterCard", "DrafterServicer", "cards_of"]
