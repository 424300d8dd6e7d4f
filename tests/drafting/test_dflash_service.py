"""DFlashProposerService over a link: the five calls, and every lie a request can tell."""

from __future__ import annotations

import re
import tracemalloc

import numpy as np
import pytest
import trio

from kakeya.compute.device import InlineDevice
from kakeya.config.sessions import SessionLimits
from kakeya.config.wire import WireLimits
from kakeya.drafting import session_states as s
from kakeya.drafting.dflash_service import DflashService
from kakeya.rpc.endpoint import Peer
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import decode
from tests.drafting.numpy_drafter import SHAPE, NumpyDrafter
from tests.drafting.session_host import Host, calling, hosting, refused
from tests.drafting.session_requests import PROMPT, draft, extend, restore, seed, seed_of, tensors

WIRE = WireLimits()


async def test_one_turn_from_restore_to_close():
    async with hosting() as host, calling(host) as caller:
        banks = await caller.restore()
        assert (banks.prompt_len, list(banks.evicted_positions)) == (6, [1, 2, 3])
        assert [each.layer for each in banks.restored] == [0, 1]
        for each in banks.restored:
            for tensor in (each.k, each.v):
                array = decode(tensor, "bank", limits=WIRE, must_be_finite=True)
                assert (array.dtype, array.bits.shape) == ("float32", (1, 3, 2, 4))
        assert (await caller.seed()).context_len == 6
        made = await caller.draft()
        assert len(made.draft_token_ids) == 3
        assert (made.forward_passes, made.peak_activation_bytes) == (1, 24)
        assert (await caller.extend()).context_len == 8
        await caller.close()
        status, why = await refused(caller.draft(8))
        assert status == "NOT_FOUND"
        assert "closed by its client, 0 s ago" in why


@pytest.mark.spec("S-07")
async def test_close_is_idempotent_also_for_a_session_that_never_was():
    async with hosting() as host, calling(host) as caller:
        await caller.close()
        await caller.at(s.Drafting)
        await caller.close()
        await caller.close()
        assert host.sessions.counts().closed[s.Ending.CLOSED] == 1


@pytest.mark.spec("S-03")
async def test_models_are_chosen_by_name_and_joined_later():
    async with hosting(drafter=NumpyDrafter("first")) as host, calling(host) as caller:
        assert await refused(caller.restore(model_id="second")) == (
            "NOT_FOUND",
            "no drafter 'second' here; served: first",
        )
        host.service.add(NumpyDrafter("second", num_layers=1))
        assert len((await caller.restore(model_id="second")).restored) == 1
        # An empty name is whatever the session has.
        assert len((await caller.restore()).restored) == 1
        told = await refused(caller.restore(model_id="first"))
        assert told[0] == "FAILED_PRECONDITION"
        caller.name = "t"
        assert len((await caller.restore()).restored) == 2


@pytest.mark.spec("S-03")
async def test_without_a_drafter_there_is_none():
    async with hosting() as host:
        limits = SessionLimits()
        bare = DflashService(host.sessions, device=host.device, limits=limits, wire=WIRE)
        lone = Host(host.drafter, host.device, host.sessions, bare, host.owners)
        async with calling(lone) as caller:
            assert await refused(caller.restore()) == (
                "NOT_FOUND",
                "no drafter of any name here; served: none",
            )


@pytest.mark.spec("S-12")
@pytest.mark.parametrize(("name", "length"), [("", 0), ("x" * 129, 129), ("é" * 200, 200)])
async def test_a_session_needs_a_name_of_some_length(name, length):
    async with hosting() as host, calling(host, name=name) as caller:
        assert await refused(caller.restore()) == (
            "INVALID_ARGUMENT",
            f"the length of session_id is {length}, it must be at least 1 and at most 128",
        )
        assert host.sessions.counts().num_sessions == 0


@pytest.mark.spec("S-07")
@pytest.mark.parametrize("first", ["its caller leaves", "it is closed"])
async def test_a_restore_that_finds_its_session_ending_opens_it_anew(first, autojump_clock):
    async with hosting(device=InlineDevice(1.0)) as host, calling(host) as caller:
        answers = []

        async def again():
            answers.append(await caller.restore())

        async with trio.open_nursery() as nursery:
            if first == "its caller leaves":
                with trio.move_on_after(0.5):
                    await caller.restore()
            else:
                await caller.at(s.Seeded)
                nursery.start_soon(caller.draft)
                await trio.sleep(0.1)
                nursery.start_soon(caller.close)
                await trio.sleep(0.1)
            nursery.start_soon(again)
        assert answers[0].prompt_len == 6
        assert (await caller.seed()).context_len == 6


@pytest.mark.spec("S-09")
async def test_another_peer_is_told_not_found_whatever_it_asks():
    porch, cellar = Peer("10.0.0.1:1", "porch"), Peer("10.0.0.1:1", "cellar")
    async with hosting() as host, calling(host, whose=porch) as caller:
        await caller.at(s.Drafting)
        for whose in (cellar, Peer("10.0.0.1:1"), Peer("porch")):
            async with calling(host, whose=whose) as other:
                for request in (
                    s.Restore,
                    s.SeedContext,
                    s.DraftBlock,
                    s.ExtendContext,
                    s.CloseSession,
                ):
                    told = await refused(other.of_kind(request))
                    assert told == ("NOT_FOUND", "no session 's' here")
        assert (await caller.extend()).context_len == 8
        assert host.sessions.counts().num_sessions == 1


@pytest.mark.spec("S-09")
async def test_a_name_holds_over_connections_and_an_anonymous_session_does_not():
    async with hosting() as host:
        for whose, finds in ((Peer("10.0.0.1:1", "porch"), True), (Peer("10.0.0.1:1"), False)):
            async with calling(host, whose=whose) as caller:
                caller.name = whose.principal or "anonymous"
                await caller.at(s.Seeded)
            again = Peer("10.0.0.1:2", whose.principal)
            async with calling(host, whose=again, name=whose.principal or "anonymous") as caller:
                if finds:
                    assert len((await caller.draft()).draft_token_ids) == 3
                else:
                    assert (await refused(caller.draft()))[0] == "NOT_FOUND"


# ---- case E1: lies


def lying(**fields) -> pb.Tensor:
    """A good tensor of two rows but for `fields`."""
    good = tensors(2)[0]
    return pb.Tensor(
        dtype=fields.get("dtype", good.dtype),
        shape=fields.get("shape", good.shape),
        data=fields.get("data", good.data),
    )


def spoilt(value: float, dtype: str) -> pb.Tensor:
    made = tensors(2, dtype=dtype)[0]
    bits = np.frombuffer(made.data, np.float32 if dtype == "float32" else np.uint16).copy()
    bits[5] = value if dtype == "float32" else {np.inf: 0x7F80}.get(value, 0x7FC0)
    if dtype == "float16":
        bits[5] = 0x7C00 if value == np.inf else 0x7E00
    return pb.Tensor(dtype=dtype, shape=made.shape, data=bits.tobytes())


TENSOR_LIES = {
    "dtype object": (lying(dtype="object"), "dtype is 'object'"),
    "dtype empty": (lying(dtype=""), "dtype is ''"),
    "dtype int32": (lying(dtype="int32"), "expected float32 or float16 or bfloat16"),
    "dtype of another size": (lying(dtype="float16"), "data has 64 bytes"),
    "a negative dim": (lying(shape=[1, -2, 8]), "dim 1 is -2"),
    "a zero dim": (lying(shape=[1, 0, 8], data=b""), "shape is [1, 0, 8], expected [1, 2, 8]"),
    "a huge dim": (lying(shape=[1, 2**62, 8]), f"shape is [1, {2**62}, 8]"),
    "a product over 2^62": (lying(shape=[2**40, 2**40, 8]), f"shape is [{2**40}, {2**40}, 8]"),
    "a million dims": (lying(shape=[1] * 10**6), "1000000 dims, the limit is 8"),
    "no dims": (lying(shape=[]), "shape is []"),
    "without the axis of one": (lying(shape=[2, 8]), "shape is [2, 8], expected [1, 2, 8]"),
    "another hidden size": (lying(shape=[1, 2, 9]), "shape is [1, 2, 9]"),
    "one row more": (lying(shape=[1, 3, 8], data=bytes(96)), "shape is [1, 3, 8]"),
    "data too short": (lying(data=bytes(63)), "data has 63 bytes, shape [1, 2, 8] needs 64"),
    "data too long": (lying(data=bytes(65)), "data has 65 bytes"),
    "no data": (lying(data=b""), "data has 0 bytes"),
    "not a number": (spoilt(np.nan, "float32"), "1 of 16 values are not finite"),
    "infinity": (spoilt(-np.inf, "float32"), "1 of 16 values are not finite"),
    "not a bfloat16 number": (spoilt(np.nan, "bfloat16"), "1 of 16 values are not finite"),
    "an infinite float16": (spoilt(np.inf, "float16"), "1 of 16 values are not finite"),
}
# From the position where two rows would belong, f.
POSITION_LIES = {
    "none": (lambda f: [], lambda f: "0 positions, they must be at least 1"),
    "fewer": (lambda f: [f], lambda f: "shape is [1, 2, 8], expected [1, 1, 8]"),
    "more": (lambda f: [f, f + 1, f + 2], lambda f: "expected [1, 3, 8]"),
    "negative": (lambda f: [-1, f], lambda f: "position 0 is -1, it must be ≥ 0"),
    "unsorted": (lambda f: [f + 1, f], lambda f: f"position 1 is {f}, it must be > {f + 1}"),
    "twice": (lambda f: [f, f], lambda f: f"position 1 is {f}, it must be > {f}"),
    "past the room": (lambda f: range(401), lambda f: "401 positions, .* at most 400"),
    "a million": (lambda f: range(10**6), lambda f: "1000000 positions, .* at most 400"),
}


def asked(caller, kind: str, aux, positions):
    message = getattr(pb, f"{kind}Request")(session_id=caller.name, aux=aux, positions=positions)
    return getattr(caller.stub, kind)(message)


async def stands(caller, kind: str) -> None:
    """The session is as it was, and takes what is right."""
    if kind == "SeedContext":
        await caller.seed()
    assert (await caller.extend(6, 2)).context_len == 8
    assert len((await caller.draft(8)).draft_token_ids) == 3


BEFORE = {"SeedContext": (s.Restored, 0), "ExtendContext": (s.Seeded, 6)}


@pytest.mark.spec("S-06")
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("lie", TENSOR_LIES)
@pytest.mark.parametrize("kind", BEFORE)
async def test_a_lying_tensor_is_refused_by_name_and_nothing_is_written(kind, lie, index):
    state, first = BEFORE[kind]
    tensor, words = TENSOR_LIES[lie]
    async with hosting() as host, calling(host) as caller:
        await caller.at(state)
        host.drafter.jobs.clear()
        aux = tensors(2, first=first)
        aux[index] = tensor
        status, why = await refused(asked(caller, kind, aux, range(first, first + 2)))
        assert status == "INVALID_ARGUMENT"
        assert why.startswith(f"aux[{index}]: ")
        assert words in why
        assert host.drafter.jobs == []
        await stands(caller, kind)


@pytest.mark.spec("S-06")
@pytest.mark.parametrize("lie", POSITION_LIES)
@pytest.mark.parametrize("kind", BEFORE)
async def test_lying_positions_are_refused_naming_the_first_bad_one(kind, lie):
    state, first = BEFORE[kind]
    positions, words = POSITION_LIES[lie]
    async with hosting() as host, calling(host) as caller:
        await caller.at(state)
        host.drafter.jobs.clear()
        aux = tensors(2, first=first)
        status, why = await refused(asked(caller, kind, aux, positions(first)))
        assert status == "INVALID_ARGUMENT"
        assert words(first) in why or re.search(words(first), why)
        assert host.drafter.jobs == []
        await stands(caller, kind)


@pytest.mark.spec("S-06")
@pytest.mark.parametrize("num", [0, 2, 4, 1000])
@pytest.mark.parametrize("kind", BEFORE)
async def test_another_number_of_aux_is_refused(kind, num):
    state, first = BEFORE[kind]
    async with hosting() as host, calling(host) as caller:
        await caller.at(state)
        aux = (tensors(2) * 400)[:num]
        told = await refused(asked(caller, kind, aux, range(first, first + 2)))
        assert told == ("INVALID_ARGUMENT", f"aux has {num} tensors, the drafter takes 3")
        await stands(caller, kind)


@pytest.mark.spec("S-06")
async def test_ids_and_block_sizes_out_of_bounds_are_refused():
    async with hosting() as host, calling(host) as caller:
        assert (await refused(caller.restore([2**32 - 1])))[0] == "INVALID_ARGUMENT"
        await caller.at(s.Seeded)
        for bad in (
            {"bonus_id": 2**32 - 1},
            {"num_drafts": 0},
            {"num_drafts": 10**9},
        ):
            status, why = await refused(caller.draft(**bad))
            assert status == "INVALID_ARGUMENT"
            assert str(*bad.values()) in why
        await stands(caller, "ExtendContext")


@pytest.mark.spec("S-06")
async def test_a_lie_costs_no_memory():
    """A terabyte is announced, 64 bytes come."""
    async with hosting() as host, calling(host) as caller:
        await caller.at(s.Seeded)
        await refused(asked(caller, "ExtendContext", tensors(2), [9, 8]))
        tracemalloc.start()
        for tensor in (lying(shape=[1, 2**40, 8]), lying(shape=[2**20, 2**20, 8])):
            aux = [tensor, *tensors(2)[1:]]
            await refused(asked(caller, "ExtendContext", aux, [6, 7]))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 1 << 20


@pytest.mark.spec("S-06")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
async def test_aux_of_each_dtype_reaches_the_context_bit_for_bit(dtype):
    async with hosting() as host, calling(host) as caller:
        await caller.restore()
        await caller.seed(dtype=dtype)
        session = host.sessions.open("direct", "x", host.drafter)
        for request in (restore(), seed(dtype=dtype)):
            await session.desk.ask(request)
        expected = await session.desk.ask(draft())
        assert tuple((await caller.draft()).draft_token_ids) == expected.ids
        await caller.extend(dtype=dtype)
        await session.desk.ask(extend(dtype=dtype))
        assert (
            tuple((await caller.draft(8)).draft_token_ids) == (await session.desk.ask(draft(8))).ids
        )


@pytest.mark.spec("S-06")
async def test_random_bytes_in_every_field_never_hurt_the_node():
    rng = seed_of()
    dims, places = [-1, 0, 1, 2, 8, 2**31, 2**62], [-(2**31), -1, 6, 7, 8, 2**31 - 1]
    limits = SessionLimits(early_s=0.001)
    async with hosting(limits=limits) as host, calling(host) as caller:
        await caller.at(s.Seeded)
        for _ in range(300):
            aux = [
                pb.Tensor(
                    dtype=rng.choice(["float32", "bfloat16", "float16", "bool", "", "x"]),
                    shape=rng.choices(dims, k=rng.randrange(5)),
                    data=rng.randbytes(rng.choice([0, 1, 64, 100])),
                )
                for _ in range(rng.choice([0, 1, 3, 3, 3, 5]))
            ]
            positions = rng.choices(places, k=rng.randrange(4))
            status, _ = await refused(asked(caller, rng.choice(list(BEFORE)), aux, positions))
            assert status in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED")
        await stands(caller, "ExtendContext")


@pytest.mark.spec("S-14")
async def test_a_deadline_of_the_caller_stops_the_work_before_its_next_job(autojump_clock):
    async with hosting(device=InlineDevice(1.0)) as host, calling(host) as caller:
        with trio.move_on_after(2.5):
            await caller.restore(range(100))
        await trio.sleep(10)
        assert host.sessions.counts().num_sessions == 0
        assert len(host.drafter.jobs) <= 3


def test_shapes_of_the_fake_are_what_the_tests_say():
    assert (SHAPE.num_aux, SHAPE.hidden_size, SHAPE.vocab_size, len(PROMPT)) == (3, 8, 251, 6)
