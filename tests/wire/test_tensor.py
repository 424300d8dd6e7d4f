"""The tensor codec: round trips, and every lie a tensor can tell (W-04 … W-12)."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kakeya.config.wire import WireLimits
from kakeya.errors import Refused
from kakeya.wire.pb.kakeya.v1.distributed_pb2 import Tensor
from kakeya.wire.tensor import (
    CARRIERS,
    Expected,
    WireArray,
    check_positions,
    count_not_finite,
    decode,
    encode,
)

LIMITS = WireLimits()


def refusal(tensor: Tensor, **options) -> str:
    with pytest.raises(Refused) as caught:
        decode(tensor, "aux[2]", limits=LIMITS, **options)
    assert caught.value.status == "INVALID_ARGUMENT"
    assert caught.value.why.startswith("aux[2]: ")
    return caught.value.why


def arrays():
    def of(dtype: str):
        shapes = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)
        return hnp.arrays(CARRIERS[dtype], shapes).map(lambda bits: WireArray(dtype, bits))

    return st.sampled_from(sorted(CARRIERS)).flatmap(of)


@pytest.mark.spec("W-04", "W-07", "W-08")
@settings(max_examples=200, deadline=None)
@given(array=arrays(), host_order=st.sampled_from(["little", "big"]))
def test_a_tensor_comes_back_bit_for_bit(array, host_order):
    message = Tensor.FromString(encode(array, host_order=host_order).SerializeToString())
    back = decode(message, "t", limits=LIMITS, host_order=host_order)
    assert (back.dtype, back.bits.shape) == (array.dtype, array.bits.shape)
    assert back.bits.dtype == CARRIERS[array.dtype]
    assert back.bits.tobytes() == array.bits.tobytes()


@pytest.mark.spec("W-05")
def test_the_wire_is_little_endian():
    array = WireArray("int32", np.array([1, -2], np.int32))
    assert encode(array).data == struct.pack("<2i", 1, -2)


@pytest.mark.spec("W-05")
def test_a_big_endian_host_swaps_the_bytes_in_its_memory():
    # What such a host holds in memory for 1, 2: seen here as swapped numbers.
    swapped = np.array([1, 2], np.int32).byteswap()
    message = encode(WireArray("int32", swapped), host_order="big")
    assert message.data == struct.pack("<2i", 1, 2)
    back = decode(message, "t", limits=LIMITS, host_order="big")
    assert back.bits.tobytes() == struct.pack(">2i", 1, 2)
    assert not back.bits.flags.writeable


@pytest.mark.spec("W-10")
def test_a_strided_array_is_sent_in_order():
    bits = np.arange(6, dtype=np.float32).reshape(2, 3).T
    back = decode(encode(WireArray("float32", bits)), "t", limits=LIMITS)
    assert (back.bits == bits).all()


@pytest.mark.spec("W-10")
def test_decoding_is_read_only_and_allocates_no_second_copy():
    message = encode(WireArray("float32", np.ones((256, 1024), np.float32)))
    tracemalloc.start()
    array = decode(message, "t", limits=LIMITS)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not array.bits.flags.writeable
    # protobuf hands out its bytes as one new object (or its own); there is no other.
    assert peak_bytes < 1.1 * (256 * 1024 * 4)


@pytest.mark.spec("W-04")
@pytest.mark.parametrize("dtype", ["", "object", "float64", "bfloat16 ", "<f4", "x" * 10_000])
def test_an_unknown_dtype_is_refused_by_name(dtype):
    why = refusal(Tensor(dtype=dtype, shape=[1], data=b"\0" * 8))
    assert dtype[:40] in why
    assert "float32, float16, bfloat16" in why
    assert len(why) < 300


LIES = {
    "a negative dim": ([2, -3], 24, ["dim 1 is -3", "≥ 0"]),
    "two negative dims": ([-2, -3], 24, ["dim 0 is -2"]),
    "a huge dim": ([2**62], 4, [str(2**62), str(LIMITS.max_tensor_bytes)]),
    "a product over 2^62": ([2**40, 2**40], 0, [str(2**82), str(LIMITS.max_tensor_bytes)]),
    "a product that wraps to 0": ([2**32, 2**32], 0, [str(2**66)]),
    "a product that wraps to 4": ([2**33 + 1, 2**31 - 1], 4, ["needs"]),
    "a zero beside huge dims": ([0, 2**62, 2**62], 0, ["the limit is"]),
    "data too short": ([2, 3], 23, ["23 bytes", "24"]),
    "data too long": ([2, 3], 25, ["25 bytes", "24"]),
    "no data": ([2, 3], 0, ["0 bytes", "24"]),
    "data of an empty tensor": ([0, 3], 4, ["4 bytes", "needs 0"]),
    "no dims, two values": ([], 8, ["8 bytes", "needs 4"]),
    "9 dims": ([1] * 9, 4, ["9 dims", "8"]),
    "a million dims": ([1] * 10**6, 4, ["1000000 dims", "8"]),
}


@pytest.mark.spec("W-06", "W-07")
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_shape_or_length_is_refused_before_any_allocation(lie):
    shape, num_bytes, named = LIES[lie]
    tensor = Tensor(dtype="float32", shape=shape, data=bytes(num_bytes))
    tracemalloc.start()
    why = refusal(tensor)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(each in why for each in named), why
    assert peak_bytes < 64 << 10
    assert len(why) < 300


@pytest.mark.spec("W-06")
@settings(max_examples=300, deadline=None)
@given(
    shape=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=10),
    data=st.binary(max_size=64),
    dtype=st.sampled_from([*CARRIERS, "object"]),
)
def test_any_message_is_an_array_or_a_refusal(shape, data, dtype):
    tensor = Tensor(dtype=dtype, shape=shape, data=data)
    try:
        array = decode(tensor, "t", limits=LIMITS)
    except Refused as refused:
        status = refused.status
    else:
        status = "INVALID_ARGUMENT"
        assert array.bits.nbytes == len(data)
        assert list(array.bits.shape) == shape
    assert status == "INVALID_ARGUMENT"


@pytest.mark.spec("W-08")
def test_an_empty_tensor_is_allowed_unless_rows_are_expected():
    tensor = Tensor(dtype="float32", shape=[1, 0, 8])
    assert decode(tensor, "t", limits=LIMITS).bits.shape == (1, 0, 8)
    why = refusal(tensor, expected=Expected((1, 4, 8)))
    assert why == "aux[2]: shape is [1, 0, 8], expected [1, 4, 8]"


def test_an_unexpected_shape_or_dtype_is_refused_with_both():
    tensor = Tensor(dtype="float32", shape=[1, 1], data=b"\0" * 4)
    assert "expected [1, any, 8]" in refusal(tensor, expected=Expected((1, None, 8)))
    expected = Expected((1, None), ("bfloat16", "float16"))
    assert "dtype is float32, expected bfloat16 or float16" in refusal(tensor, expected=expected)


@pytest.mark.spec("W-09")
def test_a_bool_that_is_neither_0_nor_1_is_refused():
    assert "a bool is 2" in refusal(Tensor(dtype="bool", shape=[3], data=b"\0\1\2"))


@pytest.mark.spec("W-11")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_values_that_are_not_finite_are_counted_and_refused(dtype, value):
    floats = np.array([1.0, value, 0.0, value], np.float32)
    bits = (floats.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else floats
    message = encode(WireArray(dtype, bits.astype(CARRIERS[dtype])))
    assert "2 of 4 values are not finite" in refusal(message, must_be_finite=True)
    assert count_not_finite(decode(message, "t", limits=LIMITS)) == 2


@pytest.mark.spec("W-11")
def test_the_largest_finite_bfloat16_is_finite():
    message = encode(WireArray("bfloat16", np.array([0x7F7F, 0xFF7F, 0x0001], np.uint16)))
    decode(message, "t", limits=LIMITS, must_be_finite=True)


@pytest.mark.spec("W-12")
@pytest.mark.parametrize(
    ("positions", "count", "named"),
    [
        ([0, 1], 3, "2 positions for 3 rows"),
        ([0, 1, 2], 2, "3 positions for 2 rows"),
        ([], 1, "0 positions for 1 rows"),
        ([-1, 0], 2, "position 0 is -1, it must be ≥ 0"),
        ([0, 5, 4], 3, "position 2 is 4, it must be > 5"),
        ([0, 5, 5], 3, "position 2 is 5, it must be > 5"),
        ([0, 100], 2, "position 1 is 100, it must be < 100"),
    ],
)
def test_bad_positions_are_refused_by_the_first_bad_one(positions, count, named):
    with pytest.raises(Refused, match="INVALID_ARGUMENT") as caught:
        check_positions(positions, "positions", count=count, below=100)
    assert named in caught.value.why


@pytest.mark.spec("W-12")
@given(st.sets(st.integers(0, 2**31 - 1), max_size=20))
def test_ascending_positions_pass(positions):
    check_positions(sorted(positions), "positions", count=len(positions))
