"""The one way a failed call looks to its caller, and how to read it."""

from __future__ import annotations

import urllib.parse
from typing import Final

from purerpc.grpclib.exceptions import RpcFailedError, raise_status
from purerpc.grpclib.status import Status

from kakeya.errors import STATUS_NAMES

__all__ = ["RpcFailedError", "again", "failure", "status_name", "status_text"]

# What an HTTP status means when there is no grpc-status (gRPC's http-grpc-status-mapping).
_OF_HTTP: Final = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
# What RST_STREAM means when there is no grpc-status (gRPC over HTTP/2, "HTTP2 errors").
_OF_RESET: Final = {
    7: "UNAVAILABLE",
    8: "CANCELLED",
    11: "RESOURCE_EXHAUSTED",
    12: "PERMISSION_DENIED",
}
# Everything printable but the percent sign itself stays as it is.
_MESSAGE_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
MAX_TEXT_LEN: Final = 1024


def failure(name: str, text: str) -> RpcFailedError:
    """The error a caller of a stub gets for this status."""
    return failure_of_code(STATUS_NAMES.index(name), text)


def failure_of_code(code: int, text: str) -> RpcFailedError:
    """The same from a number off the wire; unknown numbers read UNKNOWN."""
    status = Status(code, text)
    try:
        raise_status(status)
    except RpcFailedError as error:
        return error
    return RpcFailedError(status)


def status_name(error: RpcFailedError) -> str:
    """One of kakeya.errors.STATUS_NAMES."""
    return str(error.status.status_code.name)


def status_text(error: RpcFailedError) -> str:
    """The peer's one line, or ours when no peer said anything."""
    return str(error.status.status_message)


def again(error: RpcFailedError) -> RpcFailedError:
    """A new exception of the same status: a raised one collects its raisers' frames."""
    return failure_of_code(error.status.int_value, status_text(error))


def failure_of_http(http_status: str) -> RpcFailedError:
    """For an answer that never was gRPC's."""
    code = int(http_status) if http_status.isascii() and http_status.isdigit() else 0
    return failure(_OF_HTTP.get(code, "UNKNOWN"), f"the peer answered HTTP {code}, not gRPC")


def failure_of_reset(code: int) -> RpcFailedError:
    """For a stream the peer reset before it told a status."""
    name = _OF_RESET.get(code, "INTERNAL")
    return failure(name, f"the peer reset the call (HTTP/2 error {code})")


def quote_text(text: str) -> str:
    """A status text as the grpc-message header carries it: percent-encoded UTF-8."""
    return urllib.parse.quote(text[:MAX_TEXT_LEN], safe=_MESSAGE_SAFE, errors="replace")


def unquote_text(value: str) -> str:
    return urllib.parse.unquote(value, errors="replace")
