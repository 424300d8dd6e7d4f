"""What other nodes' drafters fit: asked of each node once in a while, beside everything else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.remote import as_draft_failures
from kakeya.decoding.source import DflashFit, DraftFailedError, PrefixFit
from kakeya.drafting.drafter_card import DrafterCard, cards_of
from kakeya.drafting.proposer_card import ProposerCard, proposer_cards_of
from kakeya.errors import Refused
from kakeya.supervision import TaskHome
from kakeya.verifying.verifier import Geometry
from kakeya.wire.pb.kakeya.node.v1 import drafters_pb2 as pb

log = structlog.get_logger(__name__)


class DrafterStub(Protocol):
    """DrafterServiceStub, or what stands in for it in tests."""

    async def ListDrafters(  # noqa: N802
        self, message: pb.ListDraftersRequest
    ) -> pb.ListDraftersResponse: ...


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """What decides whether a drafter fits.  tokenizer_sha256, family: "" when not known."""

    geometry: Geometry
    tokenizer_sha256: str
    family: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """cards: None when there was no usable answer; `ask_at_s`: when to ask again."""

    cards: tuple[DrafterCard, ...] | None
    ask_at_s: float
    proposers: tuple[ProposerCard, ...] = ()


class Catalog:
    """Drafters by address, as their nodes describe them; `serve` asks."""

    def __init__(
        self,
        *,
        open_stub: Callable[[str], DrafterStub],
        limits: DecodingLimits,
        now: Callable[[], float] = trio.current_time,
    ) -> None:
        self._open_stub = open_stub
        self._limits = limits
        self._now = now
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._asking: set[str] = set()
        self._warned: set[str] = set()
        self._home = TaskHome()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the questions' tasks until cancelled."""
        await self._home.serve(task_status)

    def card(self, address: str, model_id: str) -> DrafterCard | None:
        """The drafter `model_id` at `address`, as far as it is known; asks when it is not."""
        answer = self._answer(address)
        if answer is None or answer.cards is None:
            return None
        return next((card for card in answer.cards if card.model_id == model_id), None)

    def _answer(self, address: str) -> _Answer | None:
        answer = self._answers.get(address)
        if answer is None or self._now() >= answer.ask_at_s:
            self._ask_soon(address)
        return answer

    def fit(self, address: str, model_id: str, verifier: VerifierFacts) -> DflashFit | None:
        """How to drive the drafter; None while it is not known or where it does not fit."""
        card = self.card(address, model_id)
        if card is None or self._passed_over(address, model_id, misfit(card, verifier)):
            return None
        return fit_of(card)

    def prefix_fit(self, address: str, model_id: str, verifier: VerifierFacts) -> PrefixFit | None:
        """How to ask a model that drafts by prefix; None while unknown or where it does not fit."""
        answer = self._answer(address)
        cards = () if answer is None else answer.proposers
        card = next((each for each in cards if each.model_id == model_id), None)
        if card is None or self._passed_over(address, model_id, prefix_misfit(card, verifier)):
            return None
        return prefix_fit_of(card)

    def _passed_over(self, address: str, model_id: str, why: str) -> bool:
        """Whether there is a reason `why` it does not fit, which is said once."""
        if why:
            self._warn_once(f"{address} {model_id}", model_id=model_id, address=address, why=why)
        return bool(why)

    def _ask_soon(self, address: str) -> None:
        if self._home.nursery is None or address in self._asking:
            return
        if len(self._asking) < self._limits.max_catalog_questions:
            self._asking.add(address)
            self._home.nursery.start_soon(self._ask, address)

    async def _ask(self, address: str) -> None:
        cards: tuple[DrafterCard, ...] | None = None
        proposers: tuple[ProposerCard, ...] = ()
        ask_again_s = self._limits.catalog_s
        try:
            with as_draft_failures(within_s=self._limits.catalog_ask_s):
                response = await self._open_stub(address).ListDrafters(pb.ListDraftersRequest())
            cards, proposers = cards_of(response), proposer_cards_of(response)
        except DraftFailedError as error:
            # A peer that we did not write serves no such list, and will not soon.
            if error.reason != "unimplemented":
                ask_again_s = self._limits.catalog_retry_s
        except Refused as refused:
            self._warn_once(address, address=address, why=refused.why)
        except Exception:
            # The top of a task of its own.
            log.exception("asking for drafters failed on our own mistake", address=address)
        finally:
            self._asking.discard(address)
        self._keep(address, _Answer(cards, self._now() + ask_again_s, proposers))

    def _keep(self, address: str, answer: _Answer) -> None:
        held = self._answers.get(address)
        if answer.cards is None and held is not None:
            # What it said before holds until it says something else: it may only be restarting.
            answer = _Answer(held.cards, answer.ask_at_s, held.proposers)
        self._answers[address] = answer
        self._answers.move_to_end(address)
        if len(self._answers) > self._limits.max_circuits:
            self._answers.popitem(last=False)

    def _warn_once(self, key: str, **facts: str) -> None:
        if key not in self._warned and len(self._warned) < self._limits.max_circuits:
            self._warned.add(key)
            log.warning("a drafter is passed over", **facts)


def misfit(card: DrafterCard, verifier: VerifierFacts) -> str:
    """Why the drafter does not fit the verifier; "" when it does.  What a card leaves out fits."""
    geometry = verifier.geometry
    for name, ours, theirs in (
        ("vocabulary", geometry.vocab_size, card.vocab_size),
        ("hidden size", geometry.hidden_size, card.hidden_size),
        ("number of layers", geometry.num_layers, card.num_layers),
    ):
        if ours != theirs:
            return f"it was made for a {name} of {theirs}, the verifier has {ours}"
    if max(card.aux_layers) >= geometry.num_layers:
        return f"it takes layer {max(card.aux_layers)}, the verifier has {geometry.num_layers}"
    if card.mask_id >= geometry.vocab_size:
        return f"its mask id is {card.mask_id}, the verifier has {geometry.vocab_size} rows"
    if verifier.family and card.family and verifier.family != card.family:
        return f"it was made for a {card.family}, the verifier is a {verifier.family}"
    return _other_tokenizer(card.tokenizer_sha256, verifier.tokenizer_sha256)


def prefix_misfit(card: ProposerCard, verifier: VerifierFacts) -> str:
    """Why a model that drafts by prefix does not fit the verifier; "" when it does.

    One tokenizer means the same ids; the models of a family may still pad their vocabularies
    differently.  Spec: D-32.
    """
    ours, theirs = verifier.tokenizer_sha256, card.tokenizer_sha256
    if ours and theirs:
        return _other_tokenizer(theirs, ours)
    vocab_size = verifier.geometry.vocab_size
    if card.vocab_size != vocab_size:
        return f"its vocabulary has {card.vocab_size} ids, the verifier's {vocab_size}"
    return ""


def _other_tokenizer(theirs: str, ours: str) -> str:
    """That two tokenizers, both known, are not one; "" otherwise."""
    if theirs and ours and theirs != ours:
        return f"its tokenizer ({theirs[:12]}) is not the verifier's ({ours[:12]})"
    return ""


def prefix_fit_of(card: ProposerCard) -> PrefixFit:
    return PrefixFit(card.max_context_len, card.max_num_drafts, card.num_steps)


def fit_of(card: DrafterCard) -> DflashFit:
    return DflashFit(
        aux_layers=card.aux_layers,
        max_context_len=card.max_context_len,
        max_num_drafts=card.max_num_drafts,
        restores=card.restores,
    )


__all__ = [
    "Catalog",
    "DrafterStub",
    "VerifierFacts",
    "fit_of",
    "misfit",
    "prefix_fit_of",
    "prefix_misfit",
]
