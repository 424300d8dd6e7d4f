"""Header blocks: constant bytes out, hpack in, and what a gRPC request says in its fields.

We keep no dynamic table in either direction (our encoder shrinks its own to 0 in its first block,
our SETTINGS ask the peer for the same), so a block means the same bytes every time: blocks are
constants going out and can be remembered by their bytes coming in.
"""

from __future__ import annotations

import binascii
import logging
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar

import hpack
from hpack.exceptions import HPACKError

from kakeya.rpc.frames import COMPRESSION_ERROR, PROTOCOL_ERROR, ConnectionFault, StreamFault
from kakeya.rpc.status import failure, quote_text

T = TypeVar("T")
Fields = tuple[tuple[str, str], ...]
Metadata = tuple[tuple[str, str | bytes], ...]

# hpack logs every header it decodes at DEBUG, secrets included.
logging.getLogger("hpack").setLevel(logging.WARNING)

# HPACK: a table size update to 0, the first byte of our first block.
NO_TABLE: Final = b"\x20"
_NAME: Final = re.compile(r"[0-9a-z_.\-]{1,128}\Z")
_VALUE: Final = re.compile(r"[\x20-\x7e]*\Z")
_FIELD_NAME: Final = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+\Z")
_FORBIDDEN_IN_VALUE: Final = re.compile(r"[\x00\r\n]")
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])\Z")
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNITS: Final = (("u", 1e-6), ("m", 1e-3), ("S", 1.0))
_RESERVED: Final = frozenset({"te", "content-type", "user-agent", "host", "connection"})
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)
# Blocks worth remembering, and how many of them per connection.
_MAX_CACHED_BLOCK_BYTES: Final = 1024
_MAX_CACHED_BLOCKS: Final = 64


def _number(value: int, prefix_bits: int, first: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = bytearray((first | limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(value: str) -> bytes:
    raw = value.encode("ascii")
    return _number(len(raw), 7, 0) + raw


def literal(name: str, value: str) -> bytes:
    """One field that no table on the way may keep (HPACK's never-indexed literal)."""
    return b"\x10" + _text(name) + _text(value)


def _indexed_name(index: int, value: str) -> bytes:
    return _number(index, 4, 0x10) + _text(value)


# :status 200 and content-type, by their places in HPACK's static table (8 and 31).
_CONTENT_TYPE: Final = _indexed_name(31, "application/grpc")
_ACCEPT_ENCODING: Final = literal("grpc-accept-encoding", "identity")
RESPONSE_HEAD: Final = b"\x88" + _CONTENT_TYPE
TRAILERS_OK: Final = literal("grpc-status", "0")


@lru_cache(maxsize=1024)
def request_head(path: str, authority: str, scheme: str) -> bytes:
    """The constant part of a request's block."""
    return (
        b"\x83"
        + (b"\x87" if scheme == "https" else b"\x86")
        + _indexed_name(4, path)
        + _indexed_name(1, authority)
        + literal("te", "trailers")
        + _CONTENT_TYPE
        + _indexed_name(58, "kakeya")
        + _ACCEPT_ENCODING
    )


def status_trailers(code: int, text: str) -> bytes:
    """grpc-status and grpc-message; after RESPONSE_HEAD they are a whole trailers-only answer."""
    block = literal("grpc-status", str(code))
    return block + literal("grpc-message", quote_text(text)) if text else block


def http_answer(http_status: int) -> bytes:
    """A block for a peer that did not speak gRPC."""
    return _indexed_name(8, str(http_status))


@lru_cache(maxsize=256)
def timeout_field(timeout: str) -> bytes:
    return literal("grpc-timeout", timeout)


def format_timeout(left_s: float) -> str:
    """A grpc-timeout that is never shorter than `left_s`, in two significant digits.

    Our own scope enforces the exact deadline; a coarse one on the wire lets the peer remember
    the header block.
    """
    unit, unit_s = next(
        (pair for pair in _UNITS if left_s / pair[1] < 100_000), ("H", _UNIT_S["H"])
    )
    # A little below, or 0.25 s would become 260 ms by the last bit of a float.
    count = min(max(math.ceil(left_s / unit_s - 1e-6), 1), 99_999_999)
    coarse = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // coarse) * coarse}{unit}"


def parse_timeout(value: str) -> float:
    """Seconds.  Raises ValueError unless it is 1 to 8 digits and a unit."""
    match = _TIMEOUT.match(value)
    if match is None:
        raise ValueError(value)
    return int(match[1]) * _UNIT_S[match[2]]


def encode_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Metadata as literals.  Raises RpcFailedError(INVALID_ARGUMENT) for what may not be sent."""
    return b"".join(literal(*_checked(name, value)) for name, value in metadata)


def _checked(name: str, value: str | bytes) -> tuple[str, str]:
    if not _NAME.match(name) or name.startswith("grpc-") or name in _RESERVED:
        raise failure("INVALID_ARGUMENT", f"metadata name {name[:64]!r} may not be sent")
    if name.endswith("-bin"):
        if isinstance(value, str):
            raise failure("INVALID_ARGUMENT", f"metadata {name} takes bytes")
        return name, binascii.b2a_base64(value, newline=False).rstrip(b"=").decode("ascii")
    if isinstance(value, bytes) or not _VALUE.match(value):
        raise failure("INVALID_ARGUMENT", f"metadata {name} takes printable ASCII only")
    return name, value.strip()


def decode_metadata(fields: Fields) -> Metadata:
    """The custom part of a field list, -bin values as bytes.  Raises ValueError on bad base64."""
    out: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith((":", "grpc-")) or name in _RESERVED:
            continue
        if name.endswith("-bin"):
            out += [(name, _unbase64(part.strip())) for part in value.split(",")]
        else:
            out.append((name, value))
    return tuple(out)


def _unbase64(value: str) -> bytes:
    return binascii.a2b_base64(value + "=" * (-len(value) % 4), strict_mode=True)


class HeaderDecoder:
    """Turns a peer's header blocks into fields; one per connection, in the order of arrival."""

    def __init__(self, max_bytes: int) -> None:
        self._hpack = hpack.Decoder(max_header_list_size=max_bytes)
        self._known: dict[bytes, Fields] = {}
        self._requests: dict[bytes, Request] = {}

    def forbid_table(self) -> None:
        """The peer acknowledged our table size of 0: from now on blocks are context-free."""
        self._hpack.header_table_size = 0
        self._hpack.max_allowed_table_size = 0

    def decode(self, block: bytes) -> Fields:
        """The fields, checked as RFC 9113 §8.2 wants.

        Raises ConnectionFault when the block cannot be decoded (what follows could not be
        either), StreamFault when its fields are malformed.
        """
        table = self._hpack.header_table.dynamic_entries
        if not table and (known := self._known.get(block)) is not None:
            return known
        try:
            fields: Fields = tuple((name, value) for name, value in self._hpack.decode(block))
        except (HPACKError, UnicodeError, IndexError, ValueError, OverflowError) as error:
            raise ConnectionFault(
                COMPRESSION_ERROR, f"a header block does not decode: {type(error).__name__}"
            ) from None
        demand_well_formed(fields)
        if not table:
            _remember(self._known, block, fields)
        return fields

    def decode_request(self, block: bytes) -> Request:
        """The call that a new stream's first block asks for.  Raises as decode does."""
        table = self._hpack.header_table.dynamic_entries
        if not table and (known := self._requests.get(block)) is not None:
            return known
        request = read_request(self.decode(block))
        if not table:
            _remember(self._requests, block, request)
        return request


def _remember(known: dict[bytes, T], block: bytes, meaning: T) -> None:
    if len(block) <= _MAX_CACHED_BLOCK_BYTES:
        if len(known) >= _MAX_CACHED_BLOCKS:
            known.clear()
        known[block] = meaning


def demand_well_formed(fields: Fields) -> None:
    """Raise StreamFault for what makes a message malformed whatever it asks for."""
    regular_seen = False
    for name, value in fields:
        if not _FIELD_NAME.match(name) or name in _HOP_BY_HOP:
            raise StreamFault(PROTOCOL_ERROR, "a field name that may not be there")
        if _FORBIDDEN_IN_VALUE.search(value) or value != value.strip(" \t"):
            raise StreamFault(PROTOCOL_ERROR, "a field value that may not be there")
        if name[0] != ":":
            regular_seen = True
        elif regular_seen:
            raise StreamFault(PROTOCOL_ERROR, "a pseudo-header field after a regular one")


@dataclass(frozen=True, slots=True)
class Request:
    """What a call's header block says.  `fault_status` is not empty when it cannot be served."""

    service: str
    method: str
    timeout_s: float = math.inf
    # Secrets may be in here.
    metadata: Metadata = field(default=(), repr=False)
    fault_status: str = ""
    fault_text: str = ""
    # Not 0: the peer does not speak gRPC and gets this HTTP status.
    http_status: int = 0


_REQUEST_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})


def read_request(fields: Fields) -> Request:
    """The call these fields ask for.  Raises StreamFault when they are no HTTP/2 request."""
    pseudo: dict[str, str] = {}
    for name, value in fields:
        if name[0] == ":":
            if name not in _REQUEST_PSEUDO or name in pseudo:
                raise StreamFault(PROTOCOL_ERROR, f"pseudo-header field {name[:32]}")
            pseudo[name] = value
    if not pseudo.get(":path") or ":method" not in pseudo or ":scheme" not in pseudo:
        raise StreamFault(PROTOCOL_ERROR, "a request without :method, :scheme or :path")
    regular = {name: value for name, value in fields if name[0] != ":"}
    content_type = regular.get("content-type", "")
    if pseudo[":method"] != "POST":
        return Request("", "", http_status=405)
    if content_type != "application/grpc" and not content_type.startswith(
        ("application/grpc+", "application/grpc;")
    ):
        return Request("", "", http_status=415)
    return _read_grpc(pseudo[":path"], regular, fields)


def _read_grpc(path: str, regular: dict[str, str], fields: Fields) -> Request:
    service, slash, method = path[1:].partition("/")
    if path[0] != "/" or not slash or not service or not method or "/" in method:
        return Request("", "", fault_status="UNIMPLEMENTED", fault_text="no such path")
    encoding = regular.get("grpc-encoding", "identity")
    if encoding != "identity":
        text = "compressed messages are not accepted, only identity"
        return Request(service, method, fault_status="UNIMPLEMENTED", fault_text=text)
    if regular.get("te") != "trailers":
        text = "the request lacks te: trailers"
        return Request(service, method, fault_status="INVALID_ARGUMENT", fault_text=text)
    try:
        timeout_s = (
            parse_timeout(regular["grpc-timeout"]) if "grpc-timeout" in regular else math.inf
        )
    except ValueError:
        text = "grpc-timeout must be 1 to 8 digits and one of H M S m u n"
        return Request(service, method, fault_status="INVALID_ARGUMENT", fault_text=text)
    try:
        metadata = decode_metadata(fields)
    except ValueError:
        text = "a -bin metadata value is not base64"
        return Request(service, method, fault_status="INVALID_ARGUMENT", fault_text=text)
    return Request(service, method, timeout_s, metadata)


def find(fields: Sequence[tuple[str, str]], wanted: str) -> str | None:
    """The first value of a field, or None."""
    for name, value in fields:
        if name == wanted:
            return value
    return None
