"""A request as the routes see it, and a whole answer.  Knows no socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

Fields = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Request:
    """method in upper case; path without query; names of `fields` in lower case."""

    method: str
    path: str
    fields: Fields
    body: bytes
    peer: str = ""

    def field(self, name: str) -> str:
        """The first value of a header field, "" without one."""
        return next((value for each, value in self.fields if each == name), "")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; its length and connection fields are added where it is sent."""

    status: int
    body: bytes = b""
    content_type: str = ""
    fields: Fields = ()


class Outlet(Protocol):
    """Where the answer to one request goes: all at once, or begun and then piece by piece.

    Every method raises OSError when the client has gone or takes nothing for too long.
    """

    @property
    def is_begun(self) -> bool: ...

    @property
    def sent_at_s(self) -> float:
        """When something was sent last, or the request came (trio's clock)."""
        ...

    async def whole(self, answer: Answer) -> None: ...

    async def begin(self, status: int, fields: Fields) -> None:
        """Send the head, unless that is done."""
        ...

    async def piece(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


def json_answer(status: int, value: Any, fields: Fields = ()) -> Answer:
    return Answer(status, msgspec.json.encode(value), "application/json", fields)


__all__ = ["Answer", "Fields", "Outlet", "Request", "json_answer"]
