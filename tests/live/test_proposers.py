"""Models that draft by prefix, on another node: the same ids, by whom they are asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import grpc
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kakeya.embedded.models import TINY_FOLDER
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.cli.nodes import eventually, fleet_view, run_here, run_kakeya, running_node
from tests.live.conftest import QUICK, Pair
from tests.live.garbage import propose

PROMPT = "def read(self, path):\n    "


@pytest.fixture(scope="module")
def tiny_pair(folder, tmp_path_factory):
    """`attic` verifies with the tiny verifier; `cellar` serves models, one of another tokenizer."""
    home = tmp_path_factory.mktemp("proposers")
    stranger = small_model(tmp_path_factory.mktemp("family") / "stranger")
    cellar_args = ["--verifier", "none", "--node-id", "cellar"]
    for name in ("ngram", "tiny-verifier", "tiny-dlm", str(stranger), str(folder)):
        cellar_args += ["--proposer", name]
    with (
        running_node(home, *QUICK, "--verifier", "tiny", "--node-id", "attic") as attic,
        running_node(home, *QUICK, *cellar_args, "--peer", attic.grpc) as cellar,
    ):
        eventually(lambda: len(offers(attic, home)) == 5)
        yield Pair(attic, cellar, home)


def small_model(folder: Path) -> Path:
    """Random weights under the tiny tokenizer: it fits, and drafts nonsense."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copyfile(TINY_FOLDER / "verifier" / "tokenizer.json", folder / "tokenizer.json")
    return folder


def offers(node, home) -> set[str]:
    models = fleet_view(node, home).get("cellar", {}).get("models", [])
    return {model["model_id"] for model in models if model["tokens_per_second"]}


def said(pair, *args):
    command = ("generate", "--node", pair.attic.grpc, "--raw", "--json", "--max-tokens", "100")
    done = run_here(*command, *args, PROMPT, home=pair.home)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.spec("D-32", "D-33")
@pytest.mark.parametrize("name", ["tiny-verifier", "tiny-dlm"])
def test_the_named_model_drafts_and_the_ids_are_the_verifiers(tiny_pair, name):
    plain = said(tiny_pair, "--plain")

    def drafted():
        found = said(tiny_pair, "--proposer", name, "--num-drafts", "3")
        assert found["ids"] == plain["ids"]
        by = {(b["proposer"], b["drafted_on"]) for b in found["blocks"] if b["num_accepted"]}
        return (name, "cellar") in by

    eventually(drafted)
    assert said(tiny_pair, "--proposer", name)["ids"] == plain["ids"]  # as the policy has it


@pytest.mark.spec("D-32")
def test_a_model_that_drafts_nonsense_changes_nothing(tiny_pair):
    plain = said(tiny_pair, "--plain")

    def asked():
        found = said(tiny_pair, "--proposer", "stranger", "--num-drafts", "3")
        assert found["ids"] == plain["ids"]
        return "stranger" in {block["proposer"] for block in found["blocks"]}

    eventually(asked)


@pytest.mark.spec("D-32")
def test_a_model_of_another_tokenizer_is_not_asked_and_the_log_says_why(tiny_pair, folder):
    found = said(tiny_pair, "--proposer", str(folder), "--num-drafts", "3")
    assert found["ids"] == said(tiny_pair, "--plain")["ids"]
    assert folder.name not in {block["proposer"] for block in found["blocks"]}
    lines = tiny_pair.attic.errors
    why = [line for line in lines if "a drafter is passed over" in line and folder.name in line]
    assert len(why) == 1
    assert "its tokenizer (" in why[0]


@pytest.mark.spec("P-12", "P-13", "P-15")
def test_a_foreign_client_gets_the_accounts(tiny_pair):
    with grpc.insecure_channel(tiny_pair.cellar.grpc) as channel:
        ask = propose(channel)

        def request(**change):
            wanted = {"committed_token_ids": [9] * 70, "block_size": 5, "num_steps": 2}
            return pb.ProposeBlockRequest(**{**wanted, "model_id": "tiny-dlm", **change})

        first, again = (ask(request(), timeout=10) for _ in range(2))
        assert (first.diffusion_steps, first.forward_passes) == (2, 4)
        assert (again.diffusion_steps, again.forward_passes) == (2, 2)  # the prefix is known
        assert list(first.token_ids) == list(again.token_ids)
        assert 0 < again.peak_activation_bytes < first.peak_activation_bytes
        ar = ask(request(model_id="tiny-verifier"), timeout=10)
        assert (ar.diffusion_steps, ar.forward_passes) == (0, 6)
        for change, words in (
            ({"committed_token_ids": [2048]}, "token id is 2048"),
            ({"committed_token_ids": [9] * 2044}, "2049 tokens, tiny-dlm has 2048"),
            ({"block_size": 10**9}, "block_size is 1000000000"),
        ):
            with pytest.raises(grpc.RpcError, match=words) as caught:
                ask(request(**change), timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.spec("D-32")
def test_an_embedded_node_drafts_with_a_model_of_its_own(tmp_path):
    args = ("--embedded", "--verifier", "tiny", "--http-port", "off", "--port", "0")
    asked = ("--proposer", "tiny-dlm", "--num-drafts", "3", "--max-tokens", "60", "--json", "--raw")
    done = run_kakeya("generate", *args, *asked, PROMPT, home=tmp_path)
    assert done.returncode == 0, done.stderr
    blocks = json.loads(done.stdout)["blocks"]
    assert "tiny-dlm" in {block["proposer"] for block in blocks}
