"""Generations asked for by grpcio, for tests that need the stream itself and not a command."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import grpc

from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from tests.interop.grpcio_peer import generate

DEADLINE_S = 60.0


@dataclass
class Heard:
    """One generation, event by event; `waits_s[i]` passed before event i.

    `rounds` are (ids committed, ids drafted), one each event that brought ids.
    """

    ids: list[int] = field(default_factory=list)
    text: str = ""
    drafted_on: list[str] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)
    num_accepted: int = 0
    rounds: list[tuple[int, int]] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    fallbacks: dict[str, int] = field(default_factory=dict)


def hear(address: str, *, on_event=None, **request) -> Heard:
    """The whole generation; `on_event(heard)` is called behind each event."""
    heard = Heard()
    with grpc.insecure_channel(address) as channel:
        last_s = time.monotonic()
        for event in generate(channel)(pb.GenerateRequest(**request), timeout=DEADLINE_S):
            heard.waits_s.append(time.monotonic() - last_s)
            heard.ids.extend(event.ids)
            heard.text += event.text
            if event.ids:
                heard.rounds.append((len(event.ids), event.block.num_drafts))
            heard.num_accepted += event.block.num_accepted
            if event.block.num_drafts:
                heard.drafted_on.append(event.block.drafted_on)
                heard.drafters.append(event.block.proposer)
            if event.HasField("done"):
                heard.finish_reason = event.done.finish_reason
                heard.fallbacks = dict(event.done.fallbacks)
            if on_event is not None:
                on_event(heard)
            last_s = time.monotonic()
    return heard
