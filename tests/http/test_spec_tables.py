"""The tables of specs/http.md are those of the code."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from kakeya.config.http import HttpLimits
from kakeya.console.admission import QueueFull
from kakeya.console.request import ContextTooLong
from kakeya.http.errors import KINDS, UnknownModel, kind_of
from kakeya.http.fields import INTEGERS, NUMBERS, UNSUPPORTED, BadField
from kakeya.http.routes import routes_of
from kakeya.metrics import FAMILIES
from tests.spec_tables import table

OTHERS = {
    "prompt and answer too long": ContextTooLong(prompt_len=1, max_tokens=1, max_context_len=1),
    "an unknown model": UnknownModel("x", "y"),
    "an unsupported field": BadField("n", "no", code="unsupported_parameter"),
    "the queue is full": QueueFull(1, 1),
}


def test_the_limits():
    coded = [(f"http.{each.name}", str(each.default)) for each in fields(HttpLimits)]
    assert table("http.md", "key", "default") == coded


@pytest.mark.spec("H-18")
def test_the_metrics():
    coded = [(f.name, f.kind, f.label, " ".join(f.values)) for f in FAMILIES]
    assert table("http.md", "metric", "kind", "label", "at zero from the start") == coded


@pytest.mark.spec("H-05")
def test_the_refusals():
    kinds = KINDS | {what: kind_of(refused) for what, refused in OTHERS.items()}
    coded = [(w, str(k.status), k.type, k.code or "") for w, k in kinds.items()]
    assert table("http.md", "refusal", "status", "type", "code") == coded


def test_the_fields():
    bounds = {**NUMBERS, **INTEGERS}
    coded = [(name, f"{each.low}", f"{each.high}") for name, each in bounds.items()]
    assert table("http.md", "field", "least", "most") == coded


def test_the_unsupported_fields():
    coded = [
        (name, ", ".join(msgspec.json.encode(each).decode() for each in neutral))
        for name, neutral in UNSUPPORTED.items()
    ]
    assert table("http.md", "field", "asks for nothing") == coded


def test_the_routes():
    assert table("http.md", "method", "path") == list(routes_of(None))
