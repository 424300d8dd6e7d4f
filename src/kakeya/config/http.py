"""Limits of the HTTP door; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_connections: int = 256
    # Request line and fields together; browsers send under 4 KiB.
    max_header_bytes: int = 16 << 10
    # A prompt of node.max_prompt_bytes, escaped as JSON may escape it.
    max_body_bytes: int = 8 << 20
    # A request's head, from the connection's first byte (or the answer before it) to its end.
    header_s: float = 10.0
    # A body of n bytes is whole after body_s + n / min_body_bytes_per_s, or refused.
    body_s: float = 10.0
    min_body_bytes_per_s: int = 64 << 10
    # A connection with no request on it; longer than the 60 s that clients' pools keep theirs.
    idle_s: float = 75.0
    # A client that takes nothing of its answer for this long is given up.
    stall_s: float = 30.0
    # How long a stream may be silent before a comment shows that it lives.
    keepalive_s: float = 5.0
    # What a client may send behind its request while that is answered.
    max_pipelined_bytes: int = 64 << 10
    # Prompts of one completion request.
    max_prompts: int = 32
    # Of one that asks for the prompts' log probabilities: those are held until the answer is sent.
    max_scored_prompts: int = 8
    max_messages: int = 2048
    # What Retry-After says: a generation takes seconds, a place is free after one ends.
    retry_after_s: int = 2


__all__ = ["HttpLimits"]
