"""What is accepted of a block, and which row of it is in doubt."""

from __future__ import annotations

import pytest

from kakeya.verifying.accept import first_doubtful, num_agreeing


@pytest.mark.spec("D-01")
@pytest.mark.parametrize(
    ("drafts", "choices", "expected"),
    [
        ((), (5,), 0),
        ((5,), (5, 6), 1),
        ((5,), (6, 6), 0),
        ((5, 6, 7), (5, 6, 7, 8), 3),
        ((5, 6, 7), (5, 9, 7, 8), 1),  # agreement behind a disagreement counts nothing
    ],
)
def test_the_longest_agreeing_prefix_is_accepted(drafts, choices, expected):
    assert num_agreeing(drafts, choices) == expected


@pytest.mark.spec("D-05")
def test_the_first_row_in_use_under_the_bound_is_doubtful():
    margins = (1.0, 0.01, 0.001, 0.0)
    assert first_doubtful(margins, 3, 0.1) == 1
    assert first_doubtful(margins, 0, 0.1) is None  # rows behind a rejection are not in use
    assert first_doubtful(margins, 1, 0.1) == 1
    assert first_doubtful(margins, 3, 0.0) is None
