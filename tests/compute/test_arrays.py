"""The bridges keep dtype, shape and bits."""

from __future__ import annotations

import numpy as np
import pytest

from kakeya.compute import torch_arrays
from kakeya.config.wire import WireLimits
from kakeya.wire.tensor import CARRIERS, WireArray, decode, encode

SHAPES = [(), (0,), (3,), (2, 0, 3), (1, 4, 6)]


def torch_round_trip(dtype, bits):
    return torch_arrays.from_torch(torch_arrays.to_torch(dtype, bits))


def mlx_round_trip(dtype, bits):
    mlx_arrays = pytest.importorskip("kakeya.compute.mlx_arrays")
    return mlx_arrays.from_mlx(mlx_arrays.to_mlx(dtype, bits))


@pytest.mark.spec("W-13")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", CARRIERS)
@pytest.mark.parametrize("round_trip", [torch_round_trip, mlx_round_trip])
def test_a_round_trip_keeps_every_bit(round_trip, dtype, shape):
    raw = np.random.default_rng(7).integers(0, 2, size=(*shape, 8), dtype=np.uint8)
    if dtype != "bool":
        raw = raw * 59
    bits = raw[..., : CARRIERS[dtype].itemsize].copy().view(CARRIERS[dtype])[..., 0]
    name, back = round_trip(dtype, bits)
    assert name == dtype
    assert back.dtype == bits.dtype
    assert back.shape == bits.shape
    assert back.tobytes() == bits.tobytes()


@pytest.mark.spec("W-13")
def test_bfloat16_has_its_value_in_both_frameworks():
    bits = np.array([0x3F80, 0xC000], np.uint16)
    assert torch_arrays.to_torch("bfloat16", bits).tolist() == [1.0, -2.0]
    mlx_arrays = pytest.importorskip("kakeya.compute.mlx_arrays")
    assert mlx_arrays.to_mlx("bfloat16", bits).tolist() == [1.0, -2.0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_shares_the_memory_of_the_message_and_numpy_that_of_torch(dtype):
    message = encode(WireArray(dtype, np.ones((2, 3), CARRIERS[dtype])))
    bits = decode(message, "t", limits=WireLimits()).bits
    tensor = torch_arrays.to_torch(dtype, bits)
    assert tensor.data_ptr() == bits.ctypes.data
    assert torch_arrays.from_torch(tensor)[1].ctypes.data == bits.ctypes.data


@pytest.mark.spec("W-13")
@pytest.mark.parametrize("round_trip", [torch_round_trip, mlx_round_trip])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_at_any_address_keep_every_bit(round_trip, dtype):
    raw = np.arange(25, dtype=np.uint8)[1:]
    bits = np.frombuffer(raw.data, CARRIERS[dtype])
    assert not bits.flags.aligned
    name, back = round_trip(dtype, bits)
    assert (name, back.tobytes()) == (dtype, raw.tobytes())
    if round_trip is torch_round_trip:
        assert torch_arrays.to_torch(dtype, bits).data_ptr() % bits.itemsize == 0


def test_a_strided_tensor_is_read_in_order():
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)
    tensor = torch_arrays.to_torch("bfloat16", bits).T
    assert torch_arrays.from_torch(tensor)[1].tolist() == bits.T.tolist()
