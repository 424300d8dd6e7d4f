"""Messages with tensors, cut instead of parsed: the same values as protobuf's, or a refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kakeya.config.wire import WireLimits
from kakeya.errors import Refused
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import WireArray, decode, encode, viewed

LIMITS = WireLimits()
READERS = bulk.readers(LIMITS)
TYPES = {
    pb.RestoreResponse: bulk.RestoreResponse,
    pb.SeedContextRequest: bulk.SeedContextRequest,
    pb.ExtendContextRequest: bulk.ExtendContextRequest,
}
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TENSORS = st.builds(
    pb.Tensor,
    dtype=st.sampled_from(["", "float32", "bfloat16", "ŧ"]),
    shape=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    data=st.binary(max_size=20) | st.just(bytes(5000)),
)
OPTIONAL = st.none() | TENSORS
LAYERS = st.builds(pb.LayerKV, layer=INT32, k=OPTIONAL, v=OPTIONAL)
NUMBERS = st.lists(INT32, max_size=5)
CONTEXTS = {"session_id": st.text(max_size=5), "aux": st.lists(TENSORS, max_size=3)}
MESSAGES = st.one_of(
    st.builds(
        pb.RestoreResponse,
        restored=st.lists(LAYERS, max_size=3),
        evicted_positions=NUMBERS,
        prompt_len=st.integers(0, (1 << 32) - 1),
    ),
    st.builds(pb.SeedContextRequest, positions=NUMBERS, **CONTEXTS),
    st.builds(pb.ExtendContextRequest, positions=NUMBERS, **CONTEXTS),
)


def read(message_type: type, raw: bytes):
    return READERS[message_type](memoryview(raw))


def plain(tensor) -> tuple:
    return tensor.dtype, list(tensor.shape), bytes(tensor.data)


def values(message) -> tuple:
    """What a handler can see of a message, in either form."""
    if hasattr(message, "restored"):
        layers = [(each.layer, plain(each.k), plain(each.v)) for each in message.restored]
        return layers, list(message.evicted_positions), message.prompt_len
    return message.session_id, [plain(t) for t in message.aux], list(message.positions)


def in_bulk(message):
    """The same message over views."""
    made = TYPES[type(message)]
    if made is bulk.RestoreResponse:
        layers = [bulk.LayerKV(each.layer, each.k, each.v) for each in message.restored]
        return made(layers, message.evicted_positions, message.prompt_len)
    return made(message.session_id, message.aux, message.positions)


@pytest.mark.spec("W-14")
@settings(max_examples=200, deadline=None)
@given(message=MESSAGES)
def test_what_protobuf_wrote_is_read_with_the_same_values(message):
    assert values(read(type(message), message.SerializeToString())) == values(message)


@pytest.mark.spec("W-14")
@settings(max_examples=200, deadline=None)
@given(message=MESSAGES)
def test_what_is_written_means_the_same_to_protobuf(message):
    raw = b"".join(in_bulk(message).buffers())
    theirs = type(message).FromString(raw)
    assert values(theirs) == values(message)
    if not isinstance(message, pb.RestoreResponse):
        assert raw == message.SerializeToString()


VARINTS = st.integers(0, (1 << 64) - 1)


@st.composite
def fields(draw, depth: int = 3) -> bytes:
    """Fields of any number and type, known ones most of all; some of them broken."""
    out = b""
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.sampled_from([1, 2, 3, 4, 5, 0, 100, (1 << 29) - 1]))
        kind = draw(st.sampled_from([2, 2, 2, 2, 0, 1, 5, 3, 4, 7]))
        tag = bulk.varint(number << 3 | kind)
        if draw(st.integers(0, 20)) == 0:
            tag = tag[:-1] + bytes((tag[-1] | 0x80, 0))
        if kind == 2:
            inner = draw(fields(depth - 1) if depth else st.binary(max_size=6))
            size = len(inner) + draw(st.sampled_from([0] * 20 + [1, -1, 1 << 31]))
            tag += bulk.varint(max(size, 0)) + inner
        elif kind == 0:
            tag += bulk.varint(draw(VARINTS))
        elif kind in (1, 5):
            tag += draw(st.binary(min_size=8 if kind == 1 else 4, max_size=8 if kind == 1 else 4))
        out += tag
    return out


@st.composite
def bent(draw) -> bytes:
    """A good message with a few bytes changed, two of them joined, or one cut short."""
    raw = bytearray(draw(MESSAGES).SerializeToString() + draw(MESSAGES).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        if raw:
            at = draw(st.integers(0, len(raw) - 1))
            raw[at] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))])


@pytest.mark.spec("W-14")
@settings(max_examples=500, deadline=None)
@given(raw=st.binary(max_size=40) | fields() | bent(), message_type=st.sampled_from(list(TYPES)))
@example(raw=b"\x12\x02\x1a\x00", message_type=pb.SeedContextRequest)  # data, but none
@example(raw=b"\x12\x05\x1a\x03abc\x12\x03\x9a\x00\x00", message_type=pb.SeedContextRequest)
@example(raw=b"\x0a\x08\x12\x03\x1a\x01a\x12\x01\x1a", message_type=pb.RestoreResponse)
@example(raw=b"\x0a\x0a\x12\x03\x1a\x01a\x12\x03\x1a\x01b", message_type=pb.RestoreResponse)
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(raw, message_type):
    try:
        ours = read(message_type, raw)
    except (DecodeError, Refused):
        return
    assert values(ours) == values(message_type.FromString(raw))


@pytest.mark.spec("W-14")
def test_later_fields_of_a_message_win_as_they_do_with_protobuf():
    first, second = pb.Tensor(data=b"first", dtype="x"), pb.Tensor(data=b"second")
    raw = b"".join(
        pb.LayerKV(k=each).SerializeToString() for each in (first, second, pb.Tensor(shape=[7]))
    )
    raw = b"\x0a" + bulk.varint(len(raw)) + raw
    assert values(read(pb.RestoreResponse, raw)) == values(pb.RestoreResponse.FromString(raw))
    assert bytes(read(pb.RestoreResponse, raw).restored[0].k.data) == b"second"


@pytest.mark.spec("W-14")
@pytest.mark.parametrize(
    "raw",
    [
        b"\x92\x00\x02\x1a\x00",  # a tag in two bytes instead of one
        b"\x12\x82\x00\x1a\x00",  # a length likewise
        b"\x12\x05\x9a\x00\x02ab",  # a tag within a tensor
        b"\x13\x14",  # a group
        b"\x12\x05\x1a\x04abc",  # data that end behind their tensor
        b"\x12\x05\x1a\x02ab",  # a tensor that ends behind the message
        b"\x12",
        b"\x08" + b"\x80" * 10 + b"\x00",
        b"\x0a\x01\xff",  # no UTF-8
    ],
)
def test_what_is_written_in_an_unusual_way_or_broken_is_refused(raw):
    with pytest.raises(DecodeError):
        read(pb.SeedContextRequest, raw)


@pytest.mark.spec("W-15")
def test_more_fields_or_bytes_beside_the_tensors_than_allowed_are_refused():
    read_strictly = bulk.readers(replace(LIMITS, max_bulk_fields=8, max_bulk_rest_bytes=100))[
        pb.SeedContextRequest
    ]
    tensor = pb.Tensor(dtype="float32", shape=[1], data=bytes(5000))
    for message, why in (
        (pb.SeedContextRequest(aux=[tensor] * 3), "more than 8 fields"),
        (pb.SeedContextRequest(session_id="x" * 99, aux=[tensor]), "more than 100 bytes"),
    ):
        with pytest.raises(Refused, match=why) as caught:
            read_strictly(memoryview(message.SerializeToString()))
        assert caught.value.status == "RESOURCE_EXHAUSTED"
    small = pb.SeedContextRequest(session_id="x" * 60, aux=[tensor])
    assert read_strictly(memoryview(small.SerializeToString())).aux[0].data.nbytes == 5000


@pytest.mark.spec("W-10", "W-14")
def test_arrays_lie_in_the_memory_of_the_message_and_are_read_only():
    bits = np.arange(3000, dtype=np.float32).reshape(1, 10, 300)
    memory = bytearray(
        b"".join(bulk.SeedContextRequest("s", [viewed(WireArray("float32", bits))], [0]).buffers())
    )
    message = read(pb.SeedContextRequest, memory)
    array = decode(message.aux[0], "aux[0]", limits=LIMITS)
    assert np.array_equal(array.bits, bits)
    whole = np.frombuffer(memory, np.uint8)
    assert np.shares_memory(array.bits, whole)
    assert not array.bits.flags.writeable


@pytest.mark.spec("W-10", "W-14")
def test_a_message_is_sent_from_the_arrays_own_memory():
    bits = np.arange(3000, dtype=np.float32)
    buffers = bulk.SeedContextRequest("s", [viewed(WireArray("float32", bits))], [0]).buffers()
    large = [each for each in buffers if len(each) > 4096]
    assert len(large) == 1
    assert np.shares_memory(np.frombuffer(large[0], np.uint8), bits)


@pytest.mark.spec("W-14")
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (2, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_view_carries_what_the_copy_carries(shape, order):
    bits = np.asarray(np.arange(int(np.prod(shape))).reshape(shape), np.int32, order=order)
    array = WireArray("int32", bits)
    for host_order in ("little", "big"):
        copied, view = encode(array, host_order=host_order), viewed(array, host_order=host_order)
        assert plain(view) == plain(copied)
        assert decode(view, "t", limits=LIMITS).bits.tobytes() == copied.data
