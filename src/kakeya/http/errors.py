"""What is refused, in OpenAI's shape: a status and one object that says what and why.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kakeya.console.admission import QueueFull
from kakeya.console.request import ContextTooLong
from kakeya.errors import Refused
from kakeya.http.messages import Answer, Fields, json_answer


@dataclass(frozen=True, slots=True)
class Kind:
    """How a refusal is answered: the status, OpenAI's `type` and `code`."""

    status: int
    type: str
    code: str | None


INVALID = "invalid_request_error"
# By the status of a refusal.  Spec: specs/http.md.
KINDS = {
    "INVALID_ARGUMENT": Kind(400, INVALID, None),
    "OUT_OF_RANGE": Kind(400, INVALID, None),
    "FAILED_PRECONDITION": Kind(400, INVALID, None),
    "UNIMPLEMENTED": Kind(400, INVALID, "unsupported"),
    "UNAUTHENTICATED": Kind(401, "authentication_error", "invalid_api_key"),
    "PERMISSION_DENIED": Kind(403, "permission_error", None),
    "NOT_FOUND": Kind(404, INVALID, "not_found"),
    "RESOURCE_EXHAUSTED": Kind(503, "server_error", "overloaded"),
    "UNAVAILABLE": Kind(503, "server_error", "unavailable"),
    "INTERNAL": Kind(500, "server_error", None),
}
QUEUE_FULL = Kind(429, "rate_limit_error", "queue_full")
CONTEXT_TOO_LONG = Kind(400, INVALID, "context_length_exceeded")


class BadField(Refused):
    """A field of the request's body is wrong; `param` names it."""

    def __init__(self, param: str, why: str, *, code: str | None = None) -> None:
        super().__init__("INVALID_ARGUMENT", why)
        self.param = param
        self.code = code


class UnknownModel(Refused):
    def __init__(self, asked: str, known: str) -> None:
        there = f"this node serves {known!r}" if known else "this node runs no verifier"
        super().__init__("NOT_FOUND", f"the model {asked!r} does not exist; {there}")


def kind_of(refused: Refused) -> Kind:
    if isinstance(refused, QueueFull):
        return QUEUE_FULL
    if isinstance(refused, ContextTooLong):
        return CONTEXT_TOO_LONG
    if isinstance(refused, UnknownModel):
        return Kind(404, INVALID, "model_not_found")
    kind = KINDS.get(refused.status, KINDS["INTERNAL"])
    if isinstance(refused, BadField) and refused.code:
        return Kind(kind.status, kind.type, refused.code)
    return kind


def error_body(kind: Kind, message: str, param: str | None = None) -> dict[str, object]:
    error = {"message": message, "type": kind.type, "param": param, "code": kind.code}
    return {"error": error}


def refusal_body(refused: Refused) -> dict[str, object]:
    param = refused.param if isinstance(refused, BadField) else None
    if isinstance(refused, UnknownModel):
        param = "model"
    return error_body(kind_of(refused), refused.why, param)


def refusal_answer(refused: Refused, *, retry_after_s: int) -> Answer:
    kind = kind_of(refused)
    fields: Fields = ()
    if kind.status in (429, 503):
        fields = (("retry-after", str(retry_after_s)),)
    if kind.status == 401:
        fields = (("www-authenticate", "Bearer"),)
    return json_answer(kind.status, refusal_body(refused), fields)


def plain_answer(status: int, why: str, fields: Fields = ()) -> Answer:
    """For what fails before it is a request to us: no such path, no HTTP."""
    kind = Kind(status, INVALID if status < 500 else "server_error", None)
    return json_answer(status, error_body(kind, why), fields)


__all__ = [
    "KINDS",
    "BadField",
    "Kind",
    "UnknownModel",
    "error_body",
    "kind_of",
    "plain_answer",
    "refusal_answer",
    "refusal_body",
]
