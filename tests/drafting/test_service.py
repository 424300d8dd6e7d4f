"""ProposeBlock: exactly block_size ids, or a refusal that names value and bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from kakeya.compute.device import InlineDevice
from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.autoregressive import AutoregressiveProposer
from kakeya.drafting.ngram import NgramProposer
from kakeya.drafting.proposer import Draft
from kakeya.drafting.proposer_card import ProposerCard
from kakeya.drafting.service import ProposerService
from kakeya.errors import Refused
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.drafting.toy_model import ToyModel, greedy

LIMITS = DraftingLimits(max_prefix_len=100, index_piece_len=10)


class Fixed:
    model_id = "fixed"

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids
        self.num_asked = 0

    def propose(self, committed_ids: Sequence[int], *, num_drafts: int, num_steps: int) -> Draft:
        self.num_asked += 1
        return Draft(self.ids, num_steps, 1, 4096)


def service_of(*proposers, device=None) -> ProposerService:
    served = proposers or (NgramProposer(LIMITS),)
    return ProposerService(served, device=device or InlineDevice(), limits=LIMITS)


def request(ids=(1, 2, 1), block_size=4, num_steps=1, model_id="") -> pb.ProposeBlockRequest:
    return pb.ProposeBlockRequest(
        committed_token_ids=ids, block_size=block_size, num_steps=num_steps, model_id=model_id
    )


@pytest.mark.spec("P-05")
@pytest.mark.parametrize("model_id", ["", "ngram"])
async def test_a_block_has_exactly_block_size_ids(model_id):
    response = await service_of().ProposeBlock(request(model_id=model_id))
    assert list(response.token_ids) == [2, 1, 2, 1]


@pytest.mark.spec("P-05")
async def test_an_empty_model_id_asks_the_first_served():
    service = service_of(Fixed((5, 6, 7, 8)), NgramProposer(LIMITS))
    response = await service.ProposeBlock(request(num_steps=3))
    assert list(response.token_ids) == [5, 6, 7, 8]
    assert (response.diffusion_steps, response.forward_passes) == (3, 1)
    assert response.peak_activation_bytes == 4096
    assert list((await service.ProposeBlock(request(model_id="ngram"))).token_ids) == [2, 1, 2, 1]


@pytest.mark.spec("P-06")
async def test_an_unknown_model_is_not_found_and_the_served_are_named():
    with pytest.raises(Refused, match="no proposer 'dflash' here; served: fixed, ngram") as caught:
        await service_of(NgramProposer(LIMITS), Fixed(())).ProposeBlock(request(model_id="dflash"))
    assert caught.value.status == "NOT_FOUND"


@pytest.mark.spec("P-06")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(ids=()), "length of committed_token_ids is 0"),
        (request(ids=[1] * 101), "is 101, it must be at least 1 and at most 100"),
        (request(block_size=0), "block_size is 0"),
        (request(block_size=10**9), "block_size is 1000000000, .* at most 64"),
        (request(num_steps=0), "num_steps is 0"),
        (request(num_steps=10**9), "num_steps is 1000000000, .* at most 1024"),
    ],
)
async def test_a_request_out_of_bounds_is_refused_before_any_work(bad, words):
    proposer = Fixed((1,))
    with pytest.raises(Refused, match=words) as caught:
        await service_of(proposer).ProposeBlock(bad)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert not proposer.num_asked


@pytest.mark.spec("P-06")
async def test_the_largest_token_id_is_a_token_id():
    response = await service_of().ProposeBlock(request(ids=[(1 << 32) - 1] * 3))
    assert set(response.token_ids) == {(1 << 32) - 1}


@pytest.mark.spec("P-07")
@pytest.mark.parametrize("ids", [(), (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, -1), (1, 2, 3, 1 << 32)])
async def test_a_proposer_that_breaks_its_word_is_an_internal_error(ids):
    with pytest.raises(Refused) as caught:
        await service_of(Fixed(ids)).ProposeBlock(request())
    assert caught.value.status == "INTERNAL"


@pytest.mark.spec("P-08")
async def test_a_deadline_stops_the_work_before_its_next_job(autojump_clock):
    proposer = Fixed((1, 2, 3, 4))
    device = InlineDevice(job_s=1.0)
    service = service_of(proposer, device=device)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.run, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.05) as scope:
            await service.ProposeBlock(request())
    assert scope.cancelled_caught
    assert not proposer.num_asked


@pytest.mark.spec("P-08")
async def test_a_long_prefix_is_indexed_job_by_job(autojump_clock):
    proposer = NgramProposer(LIMITS)
    service = service_of(proposer, device=InlineDevice(job_s=1.0))
    with trio.move_on_after(3.5):
        await service.ProposeBlock(request(ids=list(range(100))))
    assert proposer.num_entered <= 4 * 4 * 10
    # What was done is not lost: the next call goes on from there.
    started_s = trio.current_time()
    await service.ProposeBlock(request(ids=list(range(100))))
    assert trio.current_time() - started_s <= 8


@pytest.mark.spec("P-08")
async def test_calls_side_by_side_are_answered_in_turn(autojump_clock):
    service = service_of(device=InlineDevice(job_s=0.1))
    answers = {}

    async def ask(start: int) -> None:
        response = await service.ProposeBlock(request(ids=[start, 1, start]))
        answers[start] = list(response.token_ids)

    async with trio.open_nursery() as nursery:
        for start in range(10, 20):
            nursery.start_soon(ask, start)
    assert answers == {start: [1, start, 1, start] for start in range(10, 20)}


TOY = ProposerCard("toy", 97, "", 60, 64, 1)


def with_toy(model: ToyModel, device, **limits) -> ProposerService:
    bounds = DraftingLimits(max_prefix_len=100, **limits)
    service = ProposerService([NgramProposer(bounds)], device=device, limits=bounds)
    service.add(AutoregressiveProposer(model, bounds), TOY, device=device)
    return service


@pytest.mark.spec("P-09")
async def test_a_model_that_joined_drafts_by_name():
    service = with_toy(ToyModel(), InlineDevice())
    response = await service.ProposeBlock(request(model_id="toy"))
    assert tuple(response.token_ids) == greedy([1, 2, 1], 4)
    assert (response.diffusion_steps, response.forward_passes) == (0, 4)
    assert response.peak_activation_bytes == 3003
    assert service.cards == [TOY]


@pytest.mark.spec("P-15")
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (request(ids=(1, 97, 3), model_id="toy"), "token id is 97, the vocabulary of toy is 0 to"),
        (request(ids=[2] * 57, model_id="toy"), "prefix and block are 61 tokens, toy has 60"),
        (request(ids=(), model_id="toy"), "committed_token_ids is 0"),
        (request(block_size=0, model_id="toy"), "block_size is 0"),
        (request(block_size=10**9, model_id="toy"), "block_size is 1000000000"),
        (request(num_steps=10**9, model_id="toy"), "num_steps is 1000000000"),
    ],
)
async def test_what_a_model_cannot_read_is_refused_before_any_work(bad, words):
    model = ToyModel()
    with pytest.raises(Refused, match=words) as caught:
        await with_toy(model, InlineDevice()).ProposeBlock(bad)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert not model.num_opened


@pytest.mark.spec("P-15")
async def test_a_node_that_drains_takes_no_new_drafts():
    service = with_toy(ToyModel(), InlineDevice())
    service.stop_admitting()
    for model_id in ("toy", "ngram", "other"):
        with pytest.raises(Refused, match="UNAVAILABLE.*drains"):
            await service.ProposeBlock(request(model_id=model_id))


@pytest.mark.spec("P-15")
async def test_calls_wait_for_a_place_and_too_many_are_refused(autojump_clock):
    service = with_toy(ToyModel(), InlineDevice(job_s=1.0), max_caches=2, max_waiting_calls=3)
    drafted, refused = [], []

    async def ask(first: int) -> None:
        try:
            response = await service.ProposeBlock(request(ids=[first, 2], model_id="toy"))
            drafted.append((first, tuple(response.token_ids)))
        except Refused as error:
            refused.append((error.status, error.why))

    async with trio.open_nursery() as nursery:
        for first in range(10, 17):
            nursery.start_soon(ask, first)
    assert sorted(drafted) == [(n, greedy([n, 2], 4)) for n, _ in sorted(drafted)]
    assert len(drafted) == 5
    assert refused == [("RESOURCE_EXHAUSTED", "3 calls wait for toy, the limit is 3")] * 2


@pytest.mark.spec("P-08", "P-10")
async def test_callers_that_leave_do_no_harm_to_the_others(autojump_clock):
    model = ToyModel(piece_len=8)
    service = with_toy(model, InlineDevice(job_s=1.0))
    text = [5] * 50
    for patience_s in (0.5, 2.5, 6.5, 8.5):
        with trio.move_on_after(patience_s):
            await service.ProposeBlock(request(ids=text, model_id="toy"))
    assert sum(model.rows) < 3 * len(text)  # what one read, the next one found
    response = await service.ProposeBlock(request(ids=text, model_id="toy"))
    assert tuple(response.token_ids) == greedy(text, 4)
