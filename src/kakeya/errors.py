"""The one error a caller is meant to see: what was refused, with which status, and why."""

from __future__ import annotations

# The names of gRPC's status codes, in the order of their numbers (0 … 16).
STATUS_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class Refused(Exception):  # noqa: N818 - it states what happened, as the docs do
    """The caller is wrong, or we cannot now.

    `status` is one of STATUS_NAMES; `why` is one line for a stranger that names the value and
    the bound, without paths or internals.
    """

    def __init__(self, status: str, why: str) -> None:
        assert status in STATUS_NAMES
        super().__init__(status, why)
        self.status = status
        self.why = why

    def __str__(self) -> str:
        return f"{self.status}: {self.why}"


def demand(holds: bool, status: str, why: str) -> None:
    """Raise Refused(status, why) unless `holds`."""
    if not holds:
        raise Refused(status, why)
