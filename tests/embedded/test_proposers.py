"""What a folder holds is told by its config.json."""

from __future__ import annotations

import json

import pytest

from kakeya.embedded.models import TINY_FOLDER
from kakeya.embedded.proposers import resolve_by_prefix


@pytest.mark.spec("P-14")
@pytest.mark.parametrize(
    ("config", "is_by_prefix"),
    [
        ({"model_type": "qwen3"}, True),
        ({"model_type": "qwen3", "masked_diffusion": {"mask_token_id": 1}}, True),
        ({"model_type": "qwen3", "dflash_config": {"mask_token_id": 1}}, False),
        ("cut off", False),
        (None, False),
    ],
)
def test_a_folder_is_told_apart(tmp_path, config, is_by_prefix):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    choice = resolve_by_prefix(str(tmp_path))
    assert (choice is not None) == is_by_prefix
    if choice is not None:
        assert (choice.model_id, choice.model) == (tmp_path.name, str(tmp_path))
    assert resolve_by_prefix(f"{tmp_path}@tiny") is None


@pytest.mark.spec("P-14")
def test_the_known_names():
    assert resolve_by_prefix("tiny-verifier").model == str(TINY_FOLDER / "verifier")
    assert resolve_by_prefix("tiny-dlm").model == str(TINY_FOLDER / "dlm")
    assert resolve_by_prefix("smollm2").model == "smollm2"
    assert resolve_by_prefix("tiny") is None
    assert resolve_by_prefix(str(TINY_FOLDER / "drafter")) is None


def test_the_tiny_set_stays_small():
    sizes = [file.stat().st_size for file in TINY_FOLDER.rglob("*") if file.is_file()]
    assert sum(sizes) < 10_000_000
