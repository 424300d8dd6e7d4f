from __future__ import annotations

import pytest

from kakeya.errors import Refused
from kakeya.node.backend import Host, choose_backend

BOTH, TORCH, MLX, NONE = (frozenset(each) for each in (("torch", "mlx"), ("torch",), ("mlx",), ()))


@pytest.mark.spec("N-21")
@pytest.mark.parametrize(
    ("asked", "importable", "is_apple", "is_packed", "chosen"),
    [
        ("auto", BOTH, False, False, "torch"),
        ("auto", BOTH, True, False, "mlx"),
        ("auto", BOTH, False, True, "mlx"),
        ("auto", TORCH, True, False, "torch"),
        ("auto", MLX, False, False, "mlx"),
        ("auto", MLX, True, True, "mlx"),
        ("torch", BOTH, True, False, "torch"),
        ("mlx", BOTH, False, False, "mlx"),
    ],
)
def test_the_backend_is_what_suits_host_and_weights(asked, importable, is_apple, is_packed, chosen):
    assert choose_backend(asked, Host(importable, is_apple), is_packed=is_packed) == chosen


@pytest.mark.spec("N-21")
@pytest.mark.parametrize(
    ("asked", "importable", "is_apple", "is_packed", "why"),
    [
        ("mlx", TORCH, True, False, "backend mlx is not installed here: pip install 'kakeya.mlx"),
        ("torch", MLX, False, False, "backend torch is not installed here"),
        ("auto", NONE, False, False, "backend torch is not installed here"),
        ("auto", NONE, True, False, "backend mlx is not installed here"),
        ("torch", BOTH, False, True, "torch does not compute weights in MLX's quantised layout"),
        ("auto", TORCH, False, True, "torch does not compute weights in MLX's quantised layout"),
    ],
)
def test_a_backend_that_cannot_compute_is_refused_by_name(
    asked, importable, is_apple, is_packed, why
):
    with pytest.raises(Refused, match=why) as refused:
        choose_backend(asked, Host(importable, is_apple), is_packed=is_packed)
    assert refused.value.status == "FAILED_PRECONDITION"
