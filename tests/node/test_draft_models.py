"""The checkpoints of the package as proposers by prefix: real passes, counted and measured."""

from __future__ import annotations

import json
import shutil

import pytest

from kakeya.config.drafting import DraftingLimits
from kakeya.config.settings import Settings
from kakeya.config.verifying import VerifyingLimits
from kakeya.drafting.autoregressive import AutoregressiveProposer
from kakeya.drafting.diffusion import DiffusionProposer
from kakeya.embedded.models import TINY_FOLDER
from kakeya.embedded.proposers import PrefixChoice, resolve_by_prefix
from kakeya.errors import Refused
from kakeya.node.draft_models import TwinDraftModel, load_proposer, masking_of
from kakeya.node.served import tokenizer_sha256
from kakeya.verifying import load as load_torch
from kakeya.verifying import load_mlx
from kakeya.verifying.verifier import KvPlan
from tests.drafting.toy_model import finished
from tests.node.activations import Allocations

TEXT = [int(each) for each in range(4, 300)]
TWINS = {"torch": load_torch, "mlx": load_mlx}


def loaded(name: str):
    return load_proposer(Settings(), resolve_by_prefix(name), lambda words, share: None)


class Counting:
    """A twin of the verifier that counts its passes."""

    def __init__(self, twin) -> None:
        self._twin = twin
        self.num_passes = 0

    def __getattr__(self, name: str):
        found = getattr(self._twin, name)
        if name not in ("forward", "prefill", "denoise"):
            return found

        def counted(*args, **more):
            self.num_passes += 1
            return found(*args, **more)

        return counted


def twin_of(name: str, folder):
    return TWINS[name].load_verifier(
        folder,
        dtype="float32",
        limits=VerifyingLimits(num_threads=1),
        model_id="tiny",
        progress=lambda share: None,
    )


@pytest.mark.spec("P-09", "P-10", "P-12")
@pytest.mark.parametrize("twin_name", TWINS)
def test_the_tiny_verifier_drafts_what_it_would_say(twin_name):
    twin = Counting(twin_of(twin_name, TINY_FOLDER / "verifier"))
    proposer = AutoregressiveProposer(TwinDraftModel(twin), DraftingLimits())
    text = list(TEXT)
    kv = twin.open(KvPlan("full", 0, 0, 1024))
    for at in range(0, len(text) - 1, 64):
        twin.prefill(kv, text[at : min(at + 64, len(text) - 1)])
    said = [text[-1]]
    for _ in range(20):
        said += twin.forward(kv, said[-1:]).ids
    for accepted in (3, 0, 5, 2, 5):
        twin.num_passes = 0
        draft = finished(proposer.jobs(text, num_drafts=5, num_steps=9))
        assert draft.ids == tuple(said[1:6])
        assert (draft.diffusion_steps, draft.forward_passes) == (0, twin.num_passes)
        text, said = text + said[1 : 2 + accepted], said[1 + accepted :]
    assert proposer.cache.num_rows < len(text) + 5 * 6


@pytest.mark.spec("P-11", "P-12")
@pytest.mark.parametrize("num_steps", [1, 2, 7, 500])
def test_the_dlm_denoises_in_the_steps_asked_for(num_steps):
    twin = Counting(twin_of("torch", TINY_FOLDER / "dlm"))
    masking = masking_of(TINY_FOLDER / "dlm")
    proposer = DiffusionProposer(TwinDraftModel(twin), masking, DraftingLimits())
    draft = finished(proposer.jobs(TEXT, num_drafts=7, num_steps=num_steps))
    assert len(draft.ids) == 7
    assert masking.mask_id not in draft.ids
    assert draft.diffusion_steps == min(num_steps, 7)
    assert draft.forward_passes == twin.num_passes == -(-(len(TEXT) - 1) // 64) + min(num_steps, 7)


@pytest.mark.spec("P-11")
def test_both_twins_denoise_alike():
    drafts = []
    for name in TWINS:
        model = TwinDraftModel(twin_of(name, TINY_FOLDER / "dlm"))
        proposer = DiffusionProposer(model, masking_of(TINY_FOLDER / "dlm"), DraftingLimits())
        drafts.append(finished(proposer.jobs(TEXT, num_drafts=7, num_steps=3)))
    assert drafts[0] == drafts[1]


@pytest.mark.spec("P-13")
@pytest.mark.parametrize("name", ["tiny-verifier", "tiny-dlm"])
@pytest.mark.parametrize("prefix_len", [20, 296])
def test_the_activation_bytes_reported_are_those_allocated(name, prefix_len):
    proposer = loaded(name).proposer
    finished(proposer.jobs(TEXT, num_drafts=1, num_steps=1))  # what is made once for all
    proposer.cache._kept.clear()
    with Allocations() as made:
        draft = finished(proposer.jobs(TEXT[:prefix_len], num_drafts=7, num_steps=2))
    slabs = proposer.cache.num_bytes
    allocated = made.peak_bytes - slabs
    assert allocated <= draft.peak_activation_bytes <= 1.5 * allocated


def test_the_card_says_what_it_fits():
    dlm, verifier = loaded("tiny-dlm").card, loaded("tiny-verifier").card
    assert dlm.tokenizer_sha256 == tokenizer_sha256(TINY_FOLDER / "verifier")
    assert dlm.tokenizer_sha256 == verifier.tokenizer_sha256
    assert (dlm.model_id, dlm.vocab_size, dlm.max_context_len) == ("tiny-dlm", 2048, 2048)


@pytest.mark.spec("P-14")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (5, "whole numbers"),
        ({"mask_token_id": 1}, "whole numbers"),
        ({"mask_token_id": 2048, "block_len": 8}, "mask_token_id is 2048, the vocabulary is 0 to"),
        ({"mask_token_id": 1, "block_len": 1}, "block_len is 1, it must be 2 to 64"),
    ],
)
def test_a_masked_diffusion_that_makes_no_sense_is_refused(tmp_path, fields, words):
    folder = tmp_path / "dlm"
    shutil.copytree(TINY_FOLDER / "dlm", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"masked_diffusion": fields}))
    with pytest.raises(Refused, match=words):
        load_proposer(Settings(), PrefixChoice("x", str(folder)), lambda words, share: None)
