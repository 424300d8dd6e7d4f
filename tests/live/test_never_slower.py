"""The benchmark of bad proposers holds what it says: rows, and ids; its figures are not judged."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from kakeya.embedded.models import TINY_FOLDER
from tests.bench.never_slower import Row, main, rate_of
from tests.bench.peers import write_noise
from tests.live.client import Heard


def test_bad_proposers_and_all_of_them_have_a_row_with_the_ids_of_plain_decoding(capsys):
    peers = ["--peers", "wrong", "dying"]
    status = main(["--prompts", "1", "--tokens", "24", "--rounds", "1", "--json", *peers])
    rows = json.loads(capsys.readouterr().out)["never_slower"]
    assert status == 0
    assert [row["way"] for row in rows] == ["ngram", "wrong", "dying", "all of them"]
    for row in rows:
        assert row["num_equal"] == row["prompts"] == 1
        assert row["tokens_per_second"] > 0
        assert row["plain_tokens_per_second"] > 0


def test_rates_count_from_the_sixth_block_on():
    heard = Heard(rounds=[(1, 0)] * 5 + [(3, 4)] * 5, waits_s=[9.0] * 5 + [0.5] * 5)
    assert rate_of(heard) == pytest.approx(15 / 2.5)


def test_a_row_whose_ids_differ_or_that_is_slower_says_so():
    plain = Heard(ids=[1, 2], rounds=[(1, 0)] * 10, waits_s=[0.1] * 10)
    row = Row("wrong")
    row.add(plain, Heard(ids=[1, 3], rounds=[(1, 0)] * 10, waits_s=[0.2] * 10))
    said = row.as_dict()
    assert (said["ids_equal"], said["is_never_slower"], said["ratio"]) == (False, False, 0.5)


def test_noise_has_the_shapes_of_the_drafter_and_none_of_its_sense(tmp_path):
    noise = load_file(write_noise(tmp_path / "noise") / "model.safetensors")
    real = load_file(TINY_FOLDER / "drafter" / "model.safetensors")
    assert {k: v.shape for k, v in noise.items()} == {k: v.shape for k, v in real.items()}
    differing = [k for k, v in real.items() if not np.array_equal(v.float(), noise[k].float())]
    assert differing == [k for k, v in real.items() if v.ndim > 1]
