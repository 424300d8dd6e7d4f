"""A proposer that dies, hangs, lies or returns costs time only, and little of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from kakeya.config.decoding import DecodingLimits
from kakeya.decoding.failover import Circuit, Circuits, Peers, allowed
from kakeya.decoding.loop import decode, engine_of
from kakeya.decoding.remote import RemoteSource, remote_sources
from kakeya.decoding.source import DraftFailedError, Place
from kakeya.errors import Refused
from kakeya.rpc.status import failure
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.decoding.toy import (
    VOCAB_SIZE,
    FakeSource,
    PacedDevice,
    ToyVerifier,
    engine_for,
    peers_of,
    plain_run,
    rough_table,
    run,
    run_after,
)

LIMITS = DecodingLimits()
TABLE = rough_table(1)
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)
ATTIC = Place("attic", "attic:1", "model")
CELLAR = Place("cellar", "cellar:1", "model")


def right(committed: Sequence[int], num_drafts: int) -> list[int]:
    return run_after(committed, TABLE, num_drafts)


class Switched:
    """A source that works until it is killed, and again once it was revived."""

    def __init__(self, place: Place, dead: str) -> None:
        self.place = place
        self.dead = dead  # how a dead one behaves: "refuses" or "hangs"
        self.is_alive = True
        self.num_asked = 0

    async def draft(self, committed_ids: Sequence[int], num_drafts: int) -> tuple[int, ...]:
        self.num_asked += 1
        await trio.sleep(0.002)
        if not self.is_alive:
            if self.dead == "hangs":
                await trio.sleep_forever()
            raise DraftFailedError("unavailable", "connection refused")
        return tuple(right(committed_ids, num_drafts))


@pytest.mark.spec("D-15")
@pytest.mark.parametrize("dead", ["refuses", "hangs"])
async def test_a_killed_proposer_is_replaced_at_once_and_taken_back_when_it_returns(
    dead, autojump_clock
):
    engine = engine_for(ToyVerifier(TABLE))
    source = Switched(ATTIC, dead)
    ids: list[int] = []
    drafted_on: list[str] = []
    gaps: list[float] = []
    at_s = trio.current_time()
    tally = None
    async for block in decode(
        engine, PROMPT, peers_of(engine, source), max_tokens=1500, draft_on="remote"
    ):
        ids.extend(block.ids)
        drafted_on.append(block.drafted_on)
        gaps.append(trio.current_time() - at_s)
        at_s = trio.current_time()
        source.is_alive = not 100 <= len(ids) < 250
        tally = block.tally or tally
    assert ids == run_after(PROMPT, TABLE, 1500)
    assert max(gaps) < 2.0
    first, last = drafted_on.index("attic"), len(drafted_on) - drafted_on[::-1].index("attic")
    assert first < 5
    assert last > len(drafted_on) - 5
    assert tally is not None
    assert sum(tally.fallbacks.values()) == (1 if dead == "refuses" else LIMITS.max_late)
    assert set(tally.fallbacks) == {"unavailable" if dead == "refuses" else "late"}


@pytest.mark.spec("D-15")
async def test_the_next_proposer_of_the_order_takes_over(autojump_clock):
    engine = engine_for(ToyVerifier(TABLE))
    attic, cellar = Switched(ATTIC, "refuses"), Switched(CELLAR, "refuses")
    drafted_on: list[str] = []
    async for block in decode(
        engine, PROMPT, peers_of(engine, attic, cellar), max_tokens=120, draft_on="remote"
    ):
        drafted_on.append(block.drafted_on)
        attic.is_alive = len(drafted_on) < 10
    assert drafted_on[9] == "attic"
    assert drafted_on[12] == "cellar"


@pytest.mark.spec("D-16")
@pytest.mark.parametrize("trip_s", [0.5, 5.0, float("inf")])
async def test_a_slow_proposer_costs_no_waiting(trip_s, autojump_clock):
    reference = await plain_run(TABLE, PROMPT, max_tokens=100)
    engine = engine_for(ToyVerifier(TABLE))
    source = FakeSource(ATTIC, right, lambda: trip_s)
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=100, draft_on="remote")
    assert outcome.ids == reference.ids
    assert outcome.elapsed_s <= 1.01 * reference.elapsed_s
    # It was asked, so that it is used again when it is fast again; but not without end.
    assert 3 <= len(source.asked) <= 10


@pytest.mark.spec("D-34")
async def test_a_proposer_slower_than_the_quickest_step_is_not_probed_at_every_one(autojump_clock):
    limits, device = DecodingLimits(cut_off_s=0.01), PacedDevice(lambda rows: 0.001)
    engine = engine_of(ToyVerifier(TABLE), device, node_id="here", limits=limits)
    source = FakeSource(ATTIC, right, lambda: 0.005)
    outcome = await run(
        engine, PROMPT, peers_of(engine, source), max_tokens=1000, draft_on="remote"
    )
    assert outcome.ids == run_after(PROMPT, TABLE, 1000)
    # Three times cut_off_s of probes, then a back-off longer than the rest of the text.
    assert len(outcome.blocks) > 60
    assert 25 <= len(source.asked) <= 35


@pytest.mark.spec("D-16")
async def test_a_proposer_that_turns_slow_is_dropped_within_its_waits(autojump_clock):
    reference = await plain_run(TABLE, PROMPT, max_tokens=100)
    engine = engine_for(ToyVerifier(TABLE))
    start_s = trio.current_time()
    source = FakeSource(ATTIC, right, lambda: 0.002 if trio.current_time() < start_s + 0.5 else 2.0)
    outcome = await run(engine, PROMPT, peers_of(engine, source), max_tokens=100, draft_on="remote")
    assert outcome.ids == reference.ids
    assert outcome.elapsed_s <= reference.elapsed_s
    assert outcome.tally.fallbacks == {"late": LIMITS.max_late}


@pytest.mark.spec("D-16")
async def test_a_healthy_proposer_is_used_from_the_second_block_on(autojump_clock):
    engine = engine_for(ToyVerifier(TABLE))
    outcome = await run(
        engine, PROMPT, peers_of(engine, FakeSource(ATTIC, right)), max_tokens=60, draft_on="remote"
    )
    assert outcome.drafted_on() == {"attic"}
    assert outcome.blocks[0].num_drafts == 0
    assert all(block.num_drafts for block in outcome.blocks[1:3])


@pytest.mark.spec("D-17")
@pytest.mark.parametrize(
    ("draft_on", "expected"),
    [("auto", (ATTIC, CELLAR)), ("remote", (ATTIC, CELLAR)), ("local", ()), ("cellar", (CELLAR,))],
)
def test_draft_on_says_who_may_be_asked(draft_on, expected):
    places = (ATTIC, Place("here", "here:1", "ngram"), CELLAR)
    assert allowed(places, draft_on=draft_on, self_node_id="here") == expected


@pytest.mark.spec("D-17")
async def test_a_view_without_proposers_leaves_the_n_gram_of_this_host(autojump_clock):
    def nobody() -> Sequence[Place]:
        raise Refused("NOT_FOUND", "nobody offers drafts")

    engine = engine_for(ToyVerifier(TABLE))
    peers = Peers(nobody, lambda place: FakeSource(place, right), Circuits(LIMITS))
    outcome = await run(engine, PROMPT, peers, max_tokens=200)
    assert outcome.ids == run_after(PROMPT, TABLE, 200)
    assert outcome.drafted_on() == {"here"}


async def test_a_peers_n_gram_is_asked_only_where_there_is_something_to_copy(autojump_clock):
    engine = engine_for(ToyVerifier(TABLE))
    source = FakeSource(Place("attic", "attic:1", "ngram"), right)
    # A prompt whose continuation holds no id twice.
    start = next(i for i in range(VOCAB_SIZE) if len({i, *right((i,), 6)}) == 7)
    outcome = await run(engine, (start,), peers_of(engine, source), max_tokens=6)
    assert outcome.ids == right((start,), 6)
    assert not outcome.drafted_on()


async def test_a_mistake_in_a_probe_does_not_end_the_generation(autojump_clock):
    def broken(committed: Sequence[int], num_drafts: int) -> Sequence[int]:
        raise ZeroDivisionError

    engine = engine_for(ToyVerifier(TABLE))
    outcome = await run(engine, PROMPT, peers_of(engine, FakeSource(ATTIC, broken)), max_tokens=9)
    assert outcome.ids == run_after(PROMPT, TABLE, 9)


@pytest.mark.spec("D-18")
def test_a_circuit_is_arithmetic_on_a_timestamp():
    new = Circuit()
    assert not new.is_closed
    assert new.is_due(0.0, LIMITS)
    closed = new.answered(1.0, 0.004)
    assert closed.is_closed
    assert closed.trip_s == 0.004
    opened = closed.failed(10.0, LIMITS)
    assert not opened.is_closed
    assert not opened.is_due(10.9, LIMITS)
    assert opened.is_due(11.0, LIMITS)
    again = opened.failed(11.0, LIMITS)
    assert not again.is_due(12.9, LIMITS)
    assert again.is_due(13.0, LIMITS)
    for _ in range(100):
        again = again.failed(0.0, LIMITS)
    assert again.is_due(LIMITS.max_circuit_backoff_s, LIMITS)
    assert again.answered(50.0, 0.01) == Circuit(True, 0, 0, trips_s=(0.01,), answered_at_s=50.0)


@pytest.mark.spec("D-18")
def test_one_late_draft_is_forgiven_and_forgotten():
    closed = Circuit().answered(0.0, 0.004)
    late = closed.was_late(1.0, LIMITS)
    assert late.is_closed
    assert not late.was_late(2.0, LIMITS).is_closed
    assert late.answered(2.0, 0.004).was_late(3.0, LIMITS).is_closed


@pytest.mark.spec("D-18")
def test_a_round_trip_is_measured_until_it_is_known_and_again_when_it_is_old():
    circuit = Circuit()
    for _ in range(3):
        assert circuit.is_due(1.0, LIMITS)
        circuit = circuit.answered(1.0, 0.01)
    assert not circuit.is_due(1.0, LIMITS)
    assert circuit.is_due(1.0 + LIMITS.refresh_trip_s, LIMITS)
    waiting = circuit.unanswered(9.0, LIMITS)
    assert waiting.is_closed
    assert not waiting.is_due(9.0 + LIMITS.refresh_trip_s - 0.1, LIMITS)
    assert waiting.is_due(9.0 + LIMITS.refresh_trip_s, LIMITS)


def test_circuits_are_bounded():
    limits = DecodingLimits(max_circuits=2)
    circuits = Circuits(limits)
    places = [Place(str(i), "", "model") for i in range(3)]
    for place in places:
        circuits.put(place, Circuit().answered(0.0, 1.0))
    assert [circuits.of(place).is_closed for place in places] == [False, True, True]


class FakeStub:
    def __init__(self, outcome: pb.ProposeBlockResponse | Exception) -> None:
        self.outcome = outcome
        self.request: pb.ProposeBlockRequest | None = None

    async def ProposeBlock(self, message: pb.ProposeBlockRequest) -> pb.ProposeBlockResponse:
        self.request = message
        await trio.lowlevel.checkpoint()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_a_remote_source_asks_as_the_contract_says():
    stub = FakeStub(pb.ProposeBlockResponse(token_ids=[7, 8, 9]))
    source = remote_sources({"attic:1": stub}.__getitem__)(ATTIC)
    assert await source.draft([1, 2], 3) == (7, 8, 9)
    assert stub.request == pb.ProposeBlockRequest(
        committed_token_ids=[1, 2], block_size=3, num_steps=1, model_id="model"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (failure("UNAVAILABLE", "gone"), "unavailable"),
        (failure("NOT_FOUND", "no such model"), "not_found"),
        (failure("DEADLINE_EXCEEDED", "too slow"), "late"),
        (Refused("RESOURCE_EXHAUSTED", "too many calls wait"), "resource_exhausted"),
        (OSError("broken"), "unavailable"),
        (trio.BrokenResourceError(), "unavailable"),
    ],
)
async def test_a_failed_call_becomes_a_countable_reason(error, reason):
    with pytest.raises(DraftFailedError) as caught:
        await RemoteSource(ATTIC, FakeStub(error)).draft([1], 1)
    assert caught.value.reason == reason
