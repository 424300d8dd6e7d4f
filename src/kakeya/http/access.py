"""Who may ask: the API key, the origins of web pages, and the names this host goes by.  Pure.

A page of any site can make a browser send requests to loopback.  So a page's origin must be this
door's own or a configured one, and a loopback door answers to loopback names only (a page whose
own name points to 127.0.0.1 would be of the same origin).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from kakeya.errors import demand
from kakeya.http.messages import Answer, Fields, Request
from kakeya.rpc.security import is_loopback_host

# Answered without a key: a load balancer's questions, and the page, which holds no data itself.
OPEN_PATHS = frozenset({"/", "/health", "/ready"})
ALLOWED_METHODS = "GET, POST, OPTIONS"
ALLOWED_FIELDS = "authorization, content-type, x-request-id"
EXPOSED_FIELDS = "x-request-id, retry-after"
MAX_AGE_S = 600


@dataclass(frozen=True, slots=True)
class Access:
    """api_key "": everybody.  origins: as browsers send them, or "*".  is_local: on loopback."""

    api_key: str
    origins: tuple[str, ...]
    is_local: bool


def demand_access(request: Request, access: Access) -> None:
    """Raise Refused: PERMISSION_DENIED for a page or a name that is not ours, UNAUTHENTICATED."""
    host, origin = request.field("host"), request.field("origin")
    demand(
        not access.is_local or is_loopback_host(_name_of(host)),
        "PERMISSION_DENIED",
        "this door is bound to loopback and answers to localhost only",
    )
    demand(
        request.method in ("GET", "HEAD") or _may_ask(origin, host, access),
        "PERMISSION_DENIED",
        "pages of this origin may not ask; name it with --http-origin",
    )
    demand(
        not access.api_key or request.path in OPEN_PATHS or _knows_key(request, access.api_key),
        "UNAUTHENTICATED",
        "the request does not carry this node's API key",
    )


def preflight(request: Request, access: Access) -> Answer:
    """The answer to OPTIONS; without its fields a browser does not let the page ask."""
    fields: Fields = (("allow", ALLOWED_METHODS),)
    if _is_allowed(request.field("origin"), access):
        fields = (
            *fields,
            ("access-control-allow-methods", ALLOWED_METHODS),
            ("access-control-allow-headers", ALLOWED_FIELDS),
            ("access-control-max-age", str(MAX_AGE_S)),
        )
    return Answer(204, fields=fields)


def origin_fields(request: Request, access: Access) -> Fields:
    """What lets a page of a configured origin read the answer."""
    origin = request.field("origin")
    if not _is_allowed(origin, access):
        return (("vary", "origin"),) if access.origins else ()
    return (
        ("access-control-allow-origin", origin),
        ("access-control-expose-headers", EXPOSED_FIELDS),
        ("vary", "origin"),
    )


def _is_allowed(origin: str, access: Access) -> bool:
    return bool(origin) and (origin in access.origins or "*" in access.origins)


def _may_ask(origin: str, host: str, access: Access) -> bool:
    own = origin.partition("://")[2]
    return not origin or own == host or _is_allowed(origin, access)


def _knows_key(request: Request, api_key: str) -> bool:
    sent = [value for name, value in request.fields if name == "authorization"]
    given = sent[0] if len(sent) == 1 else ""
    scheme, _, key = given.partition(" ")
    # The comparison comes first, so that its time says nothing.
    matches = hmac.compare_digest(key.strip().encode(), api_key.encode())
    return matches and scheme.lower() == "bearer"


def _name_of(host: str) -> str:
    """The host of a Host field, its port cut off."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0]


__all__ = ["OPEN_PATHS", "Access", "demand_access", "origin_fields", "preflight"]
