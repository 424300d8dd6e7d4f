"""From a request to the route that answers it, and whatever goes wrong to an error of its shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random

import structlog

from kakeya.errors import Refused
from kakeya.http.access import Access, demand_access, origin_fields, preflight
from kakeya.http.errors import KINDS, error_body, plain_answer, refusal_answer
from kakeya.http.messages import Answer, Fields, Outlet, Request, json_answer

log = structlog.get_logger(__name__)

MAX_ID_LEN = 128

# Answers with what it returns; None when it has sent its answer itself.
Route = Callable[[Request, Outlet], Awaitable[Answer | None]]


@dataclass(frozen=True, slots=True)
class App:
    """routes: by method and path; a path that ends in "/*" takes every path below it."""

    routes: Mapping[tuple[str, str], Route]
    access: Access
    rng: Random
    retry_after_s: int

    async def handle(self, request: Request, outlet: Outlet) -> None:
        """Answer one request.  Raises OSError when the client has gone."""
        request_id = _sound_id(request.field("x-request-id")) or f"{self.rng.getrandbits(96):024x}"
        fields = (("x-request-id", request_id), *origin_fields(request, self.access))
        labelled = Labelled(outlet, fields)
        try:
            # Every line that is logged on the way carries the id.
            with structlog.contextvars.bound_contextvars(request_id=request_id):
                answer = await self._answer(request, labelled)
        except OSError:
            raise
        except Refused as refused:
            answer = refusal_answer(refused, retry_after_s=self.retry_after_s)
        except Exception:
            log.exception("a request failed on our own mistake", path=request.path[:100])
            why = "the node failed; its log says more"
            answer = json_answer(500, error_body(KINDS["INTERNAL"], why))
        if answer is not None and not outlet.is_begun:
            await labelled.whole(answer)

    async def _answer(self, request: Request, outlet: Outlet) -> Answer | None:
        if request.method == "OPTIONS":
            return preflight(request, self.access)
        demand_access(request, self.access)
        route = self._route(request)
        if route is not None:
            return await route(request, outlet)
        methods = sorted(method for method, path in self.routes if _fits(request.path, path))
        if not methods:
            return plain_answer(404, "there is no such path")
        allowed = ", ".join(methods)
        return plain_answer(405, f"this path takes {allowed}", (("allow", allowed),))

    def _route(self, request: Request) -> Route | None:
        method = "GET" if request.method == "HEAD" else request.method
        found = self.routes.get((method, request.path))
        if found is not None:
            return found
        for (each, path), route in self.routes.items():
            if each == method and _fits(request.path, path):
                return route
        return None


@dataclass(frozen=True, slots=True)
class Labelled:
    """An outlet whose answers carry `fields` as well."""

    outlet: Outlet
    fields: Fields

    @property
    def is_begun(self) -> bool:
        return self.outlet.is_begun

    @property
    def sent_at_s(self) -> float:
        return self.outlet.sent_at_s

    async def whole(self, answer: Answer) -> None:
        more = (*answer.fields, *self.fields)
        await self.outlet.whole(Answer(answer.status, answer.body, answer.content_type, more))

    async def begin(self, status: int, fields: Fields) -> None:
        await self.outlet.begin(status, (*fields, *self.fields))

    async def piece(self, data: bytes) -> None:
        await self.outlet.piece(data)

    async def end(self) -> None:
        await self.outlet.end()


def _fits(path: str, pattern: str) -> bool:
    below = pattern.removesuffix("*")
    return path == pattern or (below != pattern and path.startswith(below) and path != below)


def _sound_id(given: str) -> str:
    """A request id of the client's, when it is short printable ASCII."""
    is_sound = given.isascii() and given.isprintable() and len(given) <= MAX_ID_LEN
    return given if is_sound else ""


__all__ = ["App", "Labelled", "Route"]
