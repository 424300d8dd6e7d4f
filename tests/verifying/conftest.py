"""Settings that must stand before torch is imported, and the checkpoints of this folder."""

from __future__ import annotations

import os

from kakeya.compute.threads import prepare_environment

prepare_environment(os.environ)

from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

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
