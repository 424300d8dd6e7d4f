from __future__ import annotations

from dataclasses import replace

import pytest

from kakeya.config.settings import Settings
from kakeya.doctor.finding import is_well
from kakeya.doctor.models import model_findings
from kakeya.doctor.pair import DrafterSide, VerifierSide, pair_findings, prefix_findings
from tests.drafting.dflash_checkpoints import write_drafter

VERIFIER = VerifierSide(
    vocab_size=100, hidden_size=32, num_layers=6, max_context_len=512, tokenizer_sha256="a" * 64
)
DRAFTER = DrafterSide(
    vocab_size=100,
    hidden_size=32,
    num_layers=6,
    aux_layers=(1, 5),
    max_context_len=512,
    tokenizer_sha256="a" * 64,
    mask_id=99,
    block_len=16,
    sliding_window=64,
)


@pytest.mark.spec("N-13")
def test_a_pair_made_for_one_another_has_nothing_to_say():
    assert {each.state for each in pair_findings("d", DRAFTER, VERIFIER)} == {"ok"}


@pytest.mark.spec("N-13")
@pytest.mark.parametrize(
    ("changes", "check", "state", "words"),
    [
        ({"tokenizer_sha256": "b" * 64}, "tokenizer", "failed", "bbbbbbbbbbbb"),
        ({"tokenizer_sha256": ""}, "tokenizer", "skipped", "no tokenizer.json"),
        ({"vocab_size": 101}, "vocabulary", "failed", "made for 101, the verifier has 100"),
        ({"hidden_size": 64}, "hidden size", "failed", "made for 64, the verifier has 32"),
        ({"num_layers": 7}, "layers", "failed", "made for 7, the verifier has 6"),
        ({"num_layers": None}, "layers", "skipped", "does not say"),
        ({"mask_id": 100}, "mask id", "failed", "100, it must be 0 to 99"),
        ({"aux_layers": (1, 6)}, "aux layers", "failed", "6, it must be 0 to 5"),
        ({"sliding_window": 8}, "window", "failed", "8 positions, less than its block of 16"),
        ({"sliding_window": None}, "window", "ok", "whole context"),
        ({"max_context_len": 256}, "context", "warning", "ends at 256, the verifier's at 512"),
    ],
)
def test_each_point_of_a_pair_has_its_line(changes, check, state, words):
    found = pair_findings("d", replace(DRAFTER, **changes), VERIFIER)
    (line,) = [each for each in found if each.check == f"pair d, {check}"]
    assert line.state == state
    assert words in line.what
    assert bool(line.do) == (state in ("failed", "warning"))
    assert {each.state for each in found if each is not line} == {"ok"}


@pytest.mark.spec("N-13")
def test_the_models_that_ship_fit_and_others_are_named(tmp_path):
    shipped = list(model_findings(Settings(verifier="tiny", proposer=("ngram", "tiny"))))
    assert {each.state for each in shipped} == {"ok"}
    write_drafter(tmp_path / "other", "full")
    for settings, check in (
        (Settings(verifier="nowhere", proposer=()), "verifier"),
        (Settings(verifier="tiny", proposer=("nowhere/at/all",)), "proposer nowhere/at/all"),
        (Settings(verifier="tiny", proposer=(str(tmp_path / "other"),)), "pair other, vocabulary"),
    ):
        found = list(model_findings(settings))
        assert not is_well(found)
        assert any(each.check == check and each.state == "failed" and each.do for each in found)


@pytest.mark.spec("N-13", "N-23")
@pytest.mark.parametrize(("limit", "state"), [(1 << 20, "failed"), (1 << 30, "ok")])
def test_a_memory_limit_is_held_against_what_the_models_need(limit, state):
    settings = Settings(verifier="tiny", proposer=("ngram", "tiny"), memory_limit=limit)
    (line,) = [each for each in model_findings(settings) if each.check == "memory limit"]
    assert line.state == state
    assert bool(line.do) == (state == "failed")


@pytest.mark.spec("N-13", "D-32")
@pytest.mark.parametrize("name", ["tiny-verifier", "tiny-dlm"])
def test_a_model_that_drafts_by_prefix_is_looked_at_as_one(name):
    found = list(model_findings(Settings(verifier="tiny", proposer=(name,))))
    assert {each.state for each in found} == {"ok"}
    assert f"pair {name}, tokenizer" in {each.check for each in found}


@pytest.mark.spec("N-13", "D-32")
@pytest.mark.parametrize(
    ("changes", "check", "state"),
    [
        ({"tokenizer_sha256": "b" * 64}, "tokenizer", "failed"),
        ({"vocab_size": 120}, "vocabulary", None),  # a family may pad differently
        ({"tokenizer_sha256": "", "vocab_size": 120}, "vocabulary", "failed"),
        ({"max_context_len": 256}, "context", "warning"),
        ({"hidden_size": 16, "num_layers": 2}, "context", "ok"),
    ],
)
def test_what_a_model_that_drafts_by_prefix_must_share(changes, check, state):
    found = prefix_findings("m", replace(VERIFIER, **changes), VERIFIER)
    assert {each.check: each.state for each in found}.get(f"pair m, {check}") == state
