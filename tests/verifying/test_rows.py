from __future__ import annotations

import numpy as np
import pytest

from kakeya.verifying.rows import choose


@pytest.mark.spec("V-06")
@pytest.mark.parametrize("num_rows", [1, 2, 8])
@pytest.mark.parametrize("vocab_size", [2, 17, 49_152])
def test_a_tie_goes_to_the_lowest_id_with_margin_0(num_rows: int, vocab_size: int):
    logits = np.full((num_rows, vocab_size), -3.0, dtype=np.float32)
    logits[:, vocab_size // 2 :] = 7.0
    logits[:, -1] = 7.0
    rows = choose(logits, want_logits=False, aux=())
    assert rows.ids == (vocab_size // 2,) * num_rows
    assert rows.margins == ((0.0,) if vocab_size > 2 else (10.0,)) * num_rows


def test_margins_are_top_1_minus_top_2_wherever_they_stand():
    logits = np.array([[5.0, 1.0, 4.5], [0.0, 2.0, 8.0], [1.0, 9.0, 3.0]], dtype=np.float32)
    rows = choose(logits, want_logits=True, aux=())
    assert rows.ids == (0, 2, 1)
    assert rows.margins == (0.5, 6.0, 6.0)
    assert np.array_equal(rows.logits, logits)
    assert rows.logits is not logits


@pytest.mark.spec("V-07")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_reported(bad: float):
    logits = np.ones((3, 10), dtype=np.float32)
    logits[1, 4] = bad
    rows = choose(logits, want_logits=False, aux=())
    assert rows.has_nan
    assert rows.ids == (0, 0, 0)
