"""The routes of the HTTP door."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import unquote

from kakeya.config.http import HttpLimits
from kakeya.console.generations import Generations
from kakeya.console.overview import Overview
from kakeya.console.slot import ModelSlot
from kakeya.errors import demand
from kakeya.http.answering import answer
from kakeya.http.app import Route
from kakeya.http.asked import Asked, chat_asked, text_asked
from kakeya.http.errors import UnknownModel
from kakeya.http.fields import body_of
from kakeya.http.messages import Answer, Outlet, Request, json_answer
from kakeya.http.page import page_answer
from kakeya.http.shapes import Label
from kakeya.metrics import Metrics

MODELS = "/v1/models"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Door:
    """What the routes answer from.  is_serving: false once the node drains."""

    generations: Generations
    overview: Overview
    metrics: Metrics
    slot: ModelSlot
    limits: HttpLimits
    wall: Callable[[], float]
    rng: Random
    is_serving: Callable[[], bool]
    started_unix: float


def routes_of(door: Door) -> Mapping[tuple[str, str], Route]:
    """Every route.  Spec: specs/http.md."""

    async def chat(request: Request, outlet: Outlet) -> Answer | None:
        asked = chat_asked(body_of(request.body), limits=door.limits, rng=door.rng)
        return await _generate(door, asked, outlet)

    async def completions(request: Request, outlet: Outlet) -> Answer | None:
        asked = text_asked(body_of(request.body), limits=door.limits, rng=door.rng)
        return await _generate(door, asked, outlet)

    async def models(request: Request, outlet: Outlet) -> Answer:
        served = [_model(door)] if door.slot.model_id else []
        return json_answer(200, {"object": "list", "data": served})

    async def model(request: Request, outlet: Outlet) -> Answer:
        _demand_model(door, unquote(request.path.removeprefix(MODELS + "/")))
        return json_answer(200, _model(door))

    async def health(request: Request, outlet: Outlet) -> Answer:
        return json_answer(200, {"status": "ok"})

    async def ready(request: Request, outlet: Outlet) -> Answer:
        demand(door.is_serving(), "UNAVAILABLE", "the node is stopping")
        demand(door.slot.is_settled, "UNAVAILABLE", "the verifier is loading")
        return json_answer(200, {"status": "ready", "model": door.slot.model_id or None})

    async def metrics(request: Request, outlet: Outlet) -> Answer:
        return Answer(200, door.metrics.exposition(), METRICS_TYPE)

    async def fleet(request: Request, outlet: Outlet) -> Answer:
        return json_answer(200, door.overview.as_json(), (("cache-control", "no-store"),))

    page_of_people = page_answer()

    async def page(request: Request, outlet: Outlet) -> Answer:
        return page_of_people

    return {
        ("GET", MODELS): models,
        ("GET", MODELS + "/*"): model,
        ("POST", "/v1/chat/completions"): chat,
        ("POST", "/v1/completions"): completions,
        ("GET", "/health"): health,
        ("GET", "/ready"): ready,
        ("GET", "/metrics"): metrics,
        ("GET", "/fleet.json"): fleet,
        ("GET", "/"): page,
    }


async def _generate(door: Door, asked: Asked, outlet: Outlet) -> Answer | None:
    demand(door.is_serving(), "UNAVAILABLE", "the node is stopping")
    _demand_model(door, asked.model or door.slot.model_id)
    label = Label(
        answer_id=f"{asked.shape.prefix}{door.rng.getrandbits(96):024x}",
        created_unix=int(door.wall()),
        model_id=door.slot.model_id,
    )
    return await answer(
        asked, label, generations=door.generations, outlet=outlet, limits=door.limits
    )


def _demand_model(door: Door, asked: str) -> None:
    known = door.slot.model_id
    if not known or asked != known:
        raise UnknownModel(asked[:100], known)


def _model(door: Door) -> dict[str, Any]:
    """created: when the node started; a folder of weights has no date of its own."""
    return {
        "id": door.slot.model_id,
        "object": "model",
        "created": int(door.started_unix),
        "owned_by": "kakeya",
    }


__all__ = ["Door", "routes_of"]
