"""From a name to a folder."""

from __future__ import annotations

import pytest

from kakeya.config.embedded import EmbeddedLimits
from kakeya.embedded import smollm2
from kakeya.embedded.models import list_models, models_folder, resolve_model
from kakeya.errors import Refused


def no_progress(words, fraction):
    pass


def test_the_cache_follows_the_base_directory_variables():
    assert str(models_folder({"XDG_CACHE_HOME": "/c"})) == "/c/kakeya/models"
    assert str(models_folder({"HOME": "/h"})) == "/h/.cache/kakeya/models"
    assert str(models_folder({"HOME": "/h", "XDG_CACHE_HOME": "rel"})) == "/h/.cache/kakeya/models"


def test_a_folder_with_a_config_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path), {}, no_progress) == tmp_path


@pytest.mark.parametrize("name", ["", "smollm3", "/no/such/folder"])
def test_an_unknown_model_is_refused_with_what_is_known(name):
    with pytest.raises(Refused, match="NOT_FOUND.*smollm2"):
        resolve_model(name, {"HOME": "/h"}, no_progress)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(Refused, match="NOT_FOUND.*holds no config.json"):
        resolve_model(str(tmp_path), {}, no_progress)


def test_the_list_says_whether_a_model_is_ready(tmp_path):
    known = list_models({"XDG_CACHE_HOME": str(tmp_path)})
    assert [(each.name, each.is_ready) for each in known] == [("smollm2", False), ("tiny", True)]


def test_another_file_than_the_known_one_is_not_converted(tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    with pytest.raises(Refused, match="FAILED_PRECONDITION.*sha256.*pip install"):
        smollm2.ensure_smollm2(tmp_path / "models", no_progress, gguf_path=other)
    assert not (tmp_path / "models").exists()


def test_a_full_disk_is_refused_before_the_work():
    with pytest.raises(Refused, match="545000001 bytes of disk.*545000000 are free"):
        smollm2.demand_disk(545_000_000, EmbeddedLimits(spare_disk_bytes=1))
