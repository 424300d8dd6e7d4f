"""A backend that keeps its word passes; one that is off by more than its guard allows does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kakeya.compute.device import InlineDevice
from kakeya.config.settings import Settings
from kakeya.doctor.exact import exactness_findings, same_ids_finding
from kakeya.doctor.finding import is_well
from kakeya.doctor.models import self_test
from kakeya.verifying.exactness import Exactness, LengthExactness
from tests.verifying.checkpoints import load, write_checkpoint


def measured(*lengths: LengthExactness) -> Exactness:
    return Exactness(is_exact=False, max_difference=0.0, by_length=lengths)


@pytest.mark.spec("N-14")
@pytest.mark.parametrize(
    ("is_exact", "off", "bound", "state"),
    [
        (True, 0.0, 0.0, "ok"),
        (False, 0.0004, 0.001, "ok"),
        (False, 0.0006, 0.001, "failed"),
        (False, 1e-6, 0.0, "failed"),  # believed exact, and is not
        (False, float("nan"), 0.001, "failed"),
    ],
)
def test_a_bound_is_enough_from_twice_the_difference_on(is_exact, off, bound, state):
    (found,) = exactness_findings(
        "torch float32", measured(LengthExactness(4, is_exact, off)), bound
    )
    assert found.state == state
    assert found.check == "exactness torch float32, block of 4"
    assert ("--exact strict" in found.do) == (state == "failed")


@pytest.mark.spec("N-14")
def test_two_texts_that_differ_are_told_from_where_on():
    assert same_ids_finding("torch", [1, 2, 3], [1, 2, 3]).state == "ok"
    found = same_ids_finding("torch", [1, 2, 3], [1, 2, 4])
    assert (found.state, found.what) == ("failed", "with drafts another id from position 2 on")
    assert "position 2" in same_ids_finding("torch", [1, 2, 3], [1, 2]).what


@pytest.mark.spec("N-14")
@pytest.mark.parametrize(("off", "is_fine"), [(0.0, True), (0.0004, True), (0.02, False)])
async def test_a_backend_that_perturbs_its_blocks_beyond_the_bound_is_caught(
    tmp_path: Path, off: float, is_fine: bool, autojump_clock
):
    write_checkpoint(tmp_path, "qwen3-tied-sliding", seed=5)
    verifier = load(tmp_path)
    verifier.margin_bound = 0.001  # as set when it was loaded
    honest, rng = verifier.forward, np.random.default_rng(3)

    def perturbed(kv, ids, **asked):
        rows = honest(kv, ids, **{**asked, "want_logits": True})
        if len(ids) == 1:
            return rows
        rows.logits[...] += rng.uniform(-off, off, rows.logits.shape).astype(np.float32)
        top = np.sort(rows.logits, axis=1)[:, -2:]
        margins = tuple(float(each) for each in top[:, 1] - top[:, 0])
        ids_of = tuple(int(each) for each in rows.logits.argmax(axis=1))
        return type(rows)(ids_of, margins, rows.logits, rows.aux, rows.has_nan)

    verifier.forward = perturbed  # type: ignore[method-assign]
    findings = await self_test("torch float32", verifier, InlineDevice(0.001), Settings())
    assert is_well(findings) == is_fine
    blocks = [each for each in findings if "block of" in each.check]
    assert {each.state for each in blocks} == {"ok" if is_fine else "failed"}
    if is_fine:
        assert findings[-1].what == "32 ids with drafts are those without"
