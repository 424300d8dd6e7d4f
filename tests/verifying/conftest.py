"""Settings that must stand before torch is imported, and the checkpoints of this folder."""

from __future__ import annotations

import os

from kakeya.compute.threads import prepare_environment

prepare_environment(os.environ)

from dataclasses import dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from kakeya.compute.matmul_torch import prepare  # noqa: E402
from kakeya.verifying.model_torch import TorchVerifier  # noqa: E402
from tests.verifying.checkpoints import MODELS, load, write_checkpoint  # noqa: E402


@dataclass(frozen=True, slots=True)
class Pair:
    """One checkpoint, as we load it and as transformers does."""

    name: str
    folder: Path
    ours: TorchVerifier
    theirs: PreTrainedModel


@pytest.fixture(scope="session", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    theirs = write_checkpoint(folder, request.param, seed=11)
    return Pair(request.param, folder, load(folder), theirs)


@pytest.fixture(scope="session")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The checkpoint with both kinds of layer."""
    folder = tmp_path_factory.mktemp("sliding")
    theirs = write_checkpoint(folder, "qwen3-tied-sliding", seed=5)
    return Pair("qwen3-tied-sliding", folder, load(folder), theirs)


# Bit for bit: what the margin guard spares a machine, and what not every machine's BLAS gives.
TO_THE_BIT = (
    "test_a_row_of_a_product_does_not_depend_on_the_rows_beside_it",
    "test_these_checkpoints_are_measured_exact_on_this_machine",
    "test_a_block_equals_steps_to_the_bit",
    "test_rows_are_equal_at_every_offset_of_a_block",
    "test_forgotten_tokens_leave_no_trace",
    "test_a_block_equals_steps_over_banks_to_the_bit",
    "test_in_window_mode_a_block_equals_steps_to_the_bit_after_many_wraps",
)


@cache
def keeps_rows_apart() -> bool:
    """Whether a row of a product is the same to the bit whatever rows stand beside it here."""
    rng = torch.Generator().manual_seed(1)
    x, weight = torch.randn(8, 64, generator=rng), torch.randn(128, 64, generator=rng)
    matrix = prepare(weight, None)
    alone = torch.cat([matrix(row[None]) for row in x])
    return all(torch.equal(matrix(x[:n]), alone[:n]) for n in range(2, 9))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = (
        "products of this machine's BLAS depend on the rows beside them; the margin guard is on"
    )
    for item in items:
        name = getattr(item, "originalname", "")
        if name in TO_THE_BIT and not keeps_rows_apart():
            item.add_marker(pytest.mark.skip(reason=reason))
