"""What is fetched of a repository, by what the server's list says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kakeya.config.hub import HubLimits
from kakeya.embedded.hub_files import FETCHED, read_list
from kakeya.errors import Refused
from tests.spec_tables import table

SHA1, SHA256 = "b" * 40, "d" * 64
LARGE = {"sha256": SHA256, "size": 7}


def body(*siblings: dict[str, Any], **more: Any) -> bytes:
    config = {"rfilename": "config.json", "size": 3, "blobId": SHA1}
    weights = {"rfilename": "model.safetensors", "size": 7, "lfs": LARGE}
    listed = {"sha": "a" * 40, "siblings": [*siblings, weights, config], **more}
    return json.dumps(listed).encode()


def small(name: str) -> dict[str, Any]:
    return {"rfilename": name, "size": 1, "blobId": SHA1}


@pytest.mark.spec("N-25")
def test_what_is_fetched_is_what_the_spec_says():
    assert {name for name, _ in table("node.md", "file", "what")} == set(FETCHED)


@pytest.mark.spec("N-25", "N-26")
def test_the_limits_are_those_of_the_spec():
    rows = dict(table("node.md", "limit", "default"))
    limits = HubLimits()
    assert rows == {f"hub.{name}": str(getattr(limits, name)) for name in limits.__slots__}


@pytest.mark.spec("N-25")
def test_small_files_come_first_and_no_other_files_at_all():
    others = (
        "README.md",
        "pytorch_model.bin",
        "a/model.safetensors",
        "x.py",
        "consolidated.00.pth",
    )
    kept = ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json")
    shard = {"rfilename": "model-00001-of-00002.safetensors", "size": 9, "lfs": LARGE}
    found = read_list("org/m", body(shard, *map(small, (*others, *kept))), HubLimits())
    assert found.commit == "a" * 40
    assert [file.name for file in found.files] == [
        "config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors",
    ]
    assert [file.hash for file in found.files[-2:]] == [SHA256, SHA256]
    assert found.files[0].hash == SHA1


@pytest.mark.spec("N-25")
@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        (b"<html>", "UNAVAILABLE", "the server's list of org/m is none"),
        (b"[]", "UNAVAILABLE", "is none"),
        (body(sha="main"), "UNAVAILABLE", "org/m has no commit"),
        (json.dumps({"sha": "a" * 40, "siblings": []}).encode(), "FAILED_PREC", "no config.json"),
        (
            json.dumps(
                {"sha": "a" * 40, "siblings": [small("config.json"), small("pytorch_model.bin")]}
            ).encode(),
            "FAILED_PREC",
            "no model*.safetensors; pytorch_model.bin is a pickle, which is never fetched",
        ),
        (body({"rfilename": "tokenizer.json", "size": 4}), "FAILED_PREC", "hash of tokenizer.json"),
        (body({"rfilename": "tokenizer.json", "blobId": SHA1}), "FAILED_PREC", "no size and hash"),
        (body({**small("tokenizer.json"), "size": -1}), "FAILED_PREC", "no size and hash"),
        (body({**small("tokenizer.json"), "blobId": "../x"}), "FAILED_PREC", "no size and hash"),
        (
            body({"rfilename": "model-2.safetensors", "lfs": {"sha256": SHA1, "size": 1}}),
            "FAILED_PREC",
            "hash of model-2.safetensors",
        ),
        (
            body(*(small(f"model-{i}.safetensors") for i in range(1024))),
            "RESOURCE_EXHAUSTED",
            "org/m has 1026 files, the limit is 1024",
        ),
    ],
)
def test_a_list_that_cannot_be_gone_by_is_refused(said: bytes, status: str, why: str):
    with pytest.raises(Refused) as refused:
        read_list("org/m", said, HubLimits())
    assert why in refused.value.why
    assert refused.value.status.startswith(status)


@pytest.mark.spec("N-25")
@pytest.mark.parametrize(
    "name", ["model/../../x.safetensors", "model\n.safetensors", "model ..json"]
)
def test_a_name_that_leads_elsewhere_is_passed_over(name: str):
    found = read_list("org/m", body({"rfilename": name, "size": 1, "lfs": LARGE}), HubLimits())
    assert [file.name for file in found.files] == ["config.json", "model.safetensors"]
