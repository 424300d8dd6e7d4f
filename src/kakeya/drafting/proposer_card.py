"""What a proposer by prefix fits, as peers ask for it before they ask for drafts."""

from __future__ import annotations

from dataclasses import dataclass

from kakeya.errors import demand
from kakeya.wire.pb.kakeya.node.v1 import drafters_pb2 as pb

# Cards of one answer: more is a mistake or an attack.
MAX_PROPOSERS = 64


@dataclass(frozen=True, slots=True)
class ProposerCard:
    """One proposer.  Fields as in drafters.proto."""

    model_id: str
    vocab_size: int
    tokenizer_sha256: str
    max_context_len: int
    max_num_drafts: int
    num_steps: int


def proposer_cards_of(response: pb.ListDraftersResponse) -> tuple[ProposerCard, ...]:
    """What a peer says of its proposers.  Raises Refused(INVALID_ARGUMENT) beyond the bounds."""
    demand(
        len(response.proposers) <= MAX_PROPOSERS,
        "INVALID_ARGUMENT",
        f"{len(response.proposers)} proposers, the limit is {MAX_PROPOSERS}",
    )
    return tuple(
        ProposerCard(
            model_id=each.model_id,
            vocab_size=each.vocab_size,
            tokenizer_sha256=each.tokenizer_sha256,
            max_context_len=each.max_context_len,
            max_num_drafts=each.max_num_drafts,
            num_steps=each.num_steps,
        )
        for each in response.proposers
    )


def proposer_message(card: ProposerCard) -> pb.ProposerCard:
    return pb.ProposerCard(
        model_id=card.model_id,
        vocab_size=card.vocab_size,
        tokenizer_sha256=card.tokenizer_sha256,
        max_context_len=card.max_context_len,
        max_num_drafts=card.max_num_drafts,
        num_steps=card.num_steps,
    )


__all__ = ["ProposerCard", "proposer_cards_of", "proposer_message"]
