from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.catalog import Catalog, VerifierFacts, misfit, prefix_misfit
from kakeya.drafting.drafter_card import DrafterCard, DrafterServicer, cards_of
from kakeya.drafting.proposer_card import ProposerCard, proposer_cards_of
from kakeya.errors import Refused
from kakeya.verifying.verifier import Geometry
from kakeya.wire.pb.kakeya.node.v1 import drafters_pb2 as pb

CARD = DrafterCard(
    "d", "v", 100, 16, 6, "abc", (1, 3), 512, 7, restores=True, family="qwen3", mask_id=99
)
GEOMETRY = Geometry(100, 16, 6, 2, 8, 512, ("full_attention",) * 6, None)
FACTS = VerifierFacts(GEOMETRY, "abc", "qwen3")


@dataclass
class Peer:
    cards: tuple[DrafterCard, ...] = (CARD,)
    proposers: tuple[ProposerCard, ...] = ()
    error: Exception | None = None
    asked: list[float] = field(default_factory=list)

    async def ListDrafters(self, message: pb.ListDraftersRequest) -> pb.ListDraftersResponse:
        self.asked.append(trio.current_time())
        if self.error is not None:
            raise self.error
        return await DrafterServicer(lambda: self.cards, lambda: self.proposers).ListDrafters(
            message
        )


async def test_cards_travel_whole():
    response = await DrafterServicer(lambda: [CARD]).ListDrafters(pb.ListDraftersRequest())
    assert cards_of(pb.ListDraftersResponse.FromString(response.SerializeToString())) == (CARD,)


@pytest.mark.parametrize("num_layers", [0, 65])
def test_cards_out_of_bounds_are_refused(num_layers):
    message = pb.ListDraftersResponse(drafters=[pb.DrafterCard(aux_layers=[1] * num_layers)])
    with pytest.raises(Refused, match=f"{num_layers} aux layers"):
        cards_of(message)


@pytest.mark.spec("D-27")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 99}, "vocabulary of 99, the verifier has 100"),
        ({"hidden_size": 17}, "hidden size of 17"),
        ({"num_layers": 7}, "number of layers of 7"),
        ({"aux_layers": (1, 6)}, "takes layer 6"),
        ({"mask_id": 100}, "mask id is 100, the verifier has 100 rows"),
        ({"family": "llama"}, "made for a llama, the verifier is a qwen3"),
        ({"tokenizer_sha256": "abd"}, "tokenizer"),
    ],
)
def test_a_misfit_is_named(change, words):
    assert words in misfit(replace(CARD, **change), FACTS)
    assert misfit(CARD, FACTS) == ""
    assert misfit(replace(CARD, tokenizer_sha256="", family=""), FACTS) == ""
    assert misfit(CARD, VerifierFacts(GEOMETRY, "", "")) == ""


@pytest.mark.spec("D-27")
async def test_a_node_is_asked_once_and_again_when_its_answer_is_old(autojump_clock):
    peer = Peer()
    catalog = Catalog(open_stub=lambda address: peer, limits=DecodingLimits())
    async with trio.open_nursery() as nursery:
        await nursery.start(catalog.serve)
        assert catalog.fit("a:1", "d", FACTS) is None
        await trio.sleep(0.1)
        for _ in range(3):
            fit = catalog.fit("a:1", "d", FACTS)
        assert fit is not None
        assert fit.aux_layers == (1, 3)
        assert len(peer.asked) == 1
        await trio.sleep(61)
        catalog.fit("a:1", "d", FACTS)
        await trio.sleep(0.1)
        assert len(peer.asked) == 2
        peer.error = OSError("gone")
        await trio.sleep(61)
        catalog.fit("a:1", "d", FACTS)
        await trio.sleep(0.1)
        assert catalog.fit("a:1", "d", FACTS) == fit, "what it said holds while it restarts"
        assert catalog.fit("a:1", "other", FACTS) is None
        nursery.cancel_scope.cancel()


@pytest.mark.spec("D-27")
async def test_a_drafter_that_does_not_fit_is_not_driven(autojump_clock):
    catalog = Catalog(
        open_stub=lambda address: Peer((replace(CARD, vocab_size=5),)), limits=DecodingLimits()
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(catalog.serve)
        catalog.fit("a:1", "d", FACTS)
        await trio.sleep(0.1)
        assert catalog.card("a:1", "d") is not None
        assert catalog.fit("a:1", "d", FACTS) is None
        nursery.cancel_scope.cancel()


MODEL = ProposerCard("m", 100, "abc", 512, 64, 4)


async def test_cards_of_proposers_travel_whole():
    response = await DrafterServicer(tuple, lambda: [MODEL]).ListDrafters(pb.ListDraftersRequest())
    sent = pb.ListDraftersResponse.FromString(response.SerializeToString())
    assert proposer_cards_of(sent) == (MODEL,)
    many = pb.ListDraftersResponse(proposers=[pb.ProposerCard()] * 65)
    with pytest.raises(Refused, match="65 proposers, the limit is 64"):
        proposer_cards_of(many)


@pytest.mark.spec("D-32")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"vocab_size": 128}, ""),  # a family pads its vocabularies differently
        ({"tokenizer_sha256": "abd"}, "its tokenizer (abd) is not the verifier's (abc)"),
        ({"tokenizer_sha256": ""}, ""),
        (
            {"tokenizer_sha256": "", "vocab_size": 99},
            "its vocabulary has 99 ids, the verifier's 100",
        ),
    ],
)
def test_a_model_of_another_tokenizer_is_named(change, words):
    assert prefix_misfit(replace(MODEL, **change), FACTS) == words


@pytest.mark.spec("D-32")
async def test_a_model_that_does_not_fit_is_passed_over(autojump_clock):
    peer = Peer(proposers=(MODEL, replace(MODEL, model_id="other", tokenizer_sha256="abd")))
    catalog = Catalog(open_stub=lambda address: peer, limits=DecodingLimits())
    async with trio.open_nursery() as nursery:
        await nursery.start(catalog.serve)
        assert catalog.prefix_fit("a:1", "m", FACTS) is None
        await trio.sleep(0.1)
        fit = catalog.prefix_fit("a:1", "m", FACTS)
        assert fit is not None
        assert (fit.max_context_len, fit.max_num_drafts, fit.num_steps) == (512, 64, 4)
        assert catalog.prefix_fit("a:1", "other", FACTS) is None
        assert catalog.prefix_fit("a:1", "d", FACTS) is None  # a drafter, not by prefix
        assert catalog.fit("a:1", "m", FACTS) is None
        nursery.cancel_scope.cancel()
