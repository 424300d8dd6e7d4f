"""Clients of a soak: those that hear their answer out, and those that leave on the way."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import numpy as np

from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import WireArray, encode
from tests.interop.grpcio_peer import generate

PATIENCE_S = 120.0
# Where a client leaves: (how it asks, how far it gets).
PHASES = (
    ("http", "in its head"),
    ("http", "at once"),
    ("http", "in the stream"),
    ("http", "before the whole"),
    ("grpc", "at once"),
    ("grpc", "in the stream"),
    ("session", "restored"),
    ("session", "seeded"),
    ("session", "drafting"),
)

# What a drafter says that is dead, that has just come back and has not loaded yet, and one that
# waits as long as it was told to.
GONE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)


@dataclass(frozen=True)
class Asked:
    """One request; phase: where its client leaves, None: it stays."""

    number: int
    prompt: str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stream: bool = False
    scores: bool = False
    phase: tuple[str, str] | None = None

    @property
    def body(self) -> dict[str, Any]:
        scores = {"logprobs": 0} if self.scores else {}
        return scores | {
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": self.stream,
        }


@dataclass(frozen=True)
class Said:
    """tokens: as `logprobs` spells them, None where they were not asked for."""

    text: str
    finish_reason: str
    tokens: list[str] | None = None
    num_accepted: int = 0


def answer_of(address: str, asked: Asked) -> Said:
    """Its answer, whole.  Raises AssertionError for any other status than 200, OSError."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    with closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(asked.body))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        pieces = list(_pieces(answer)) if asked.stream else [json.loads(answer.read())]
    choices = [piece["choices"][0] for piece in pieces]
    assert not asked.stream or all("error" not in piece for piece in pieces)
    spelled = [each["logprobs"]["tokens"] for each in choices if each["logprobs"]]
    return Said(
        text="".join(each["text"] for each in choices),
        finish_reason=choices[-1]["finish_reason"],
        tokens=list(itertools.chain(*spelled)) if asked.scores else None,
        num_accepted=pieces[-1]["timings"]["draft_n_accepted"],
    )


def _pieces(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def leave(addresses: dict[str, str], asked: Asked, rng: Random) -> None:
    """Ask and leave where `asked.phase` says; addresses: "http", "grpc" and "session".

    A drafter that is dead just then leaves nothing to ask.
    """
    assert asked.phase is not None
    kind, phase = asked.phase
    if kind == "http":
        _leave_http(addresses[kind], asked, phase, rng)
    elif kind == "grpc":
        _leave_grpc(addresses[kind], asked, phase, rng)
    else:
        _leave_session(addresses[kind], asked, phase)


def _leave_http(address: str, asked: Asked, phase: str, rng: Random) -> None:
    host, _, port = address.rpartition(":")
    data = json.dumps(asked.body | {"stream": phase == "in the stream"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        if phase == "in its head":
            client.sendall(head.encode()[: rng.randrange(1, len(head))])
            return
        client.sendall(head.encode() + data)
        if phase == "in the stream":
            client.recv(1)
        if phase != "at once":
            time.sleep(rng.uniform(0, 0.2))


def _leave_grpc(address: str, asked: Asked, phase: str, rng: Random) -> None:
    with grpc.insecure_channel(address) as channel:
        request = node_pb2.GenerateRequest(
            text=asked.prompt, raw=True, max_tokens=asked.max_tokens, temperature=asked.temperature
        )
        events = generate(channel)(request, timeout=PATIENCE_S)
        if phase == "in the stream":
            next(events)
            time.sleep(rng.uniform(0, 0.2))
        if rng.random() < 0.5:
            events.cancel()  # else the channel closes, and its connection with it


def _leave_session(address: str, asked: Asked, phase: str) -> None:
    """A foreign session on the drafter's node whose owner never closes it."""
    ids, name = list(range(3, 43)), f"soak-{asked.number}"
    with grpc.insecure_channel(address) as channel:
        try:
            _call(channel, "Restore", pb.RestoreRequest(
                session_id=name, prompt_ids=ids, sink=4, window=16, model_id="tiny"))  # fmt: skip
            if phase == "restored":
                return
            rows = encode(WireArray("float32", np.ones((1, len(ids), 128), np.float32)))
            _call(channel, "SeedContext", pb.SeedContextRequest(
                session_id=name, aux=[rows] * 3, positions=range(len(ids))))  # fmt: skip
            if phase == "seeded":
                return
            # It waits for rows that nobody sends, until its caller has gone.
            _call(channel, "DraftBlock", pb.DraftBlockRequest(
                session_id=name, bonus_token_id=5, context_len=len(ids) + 9, block_size=3),
                timeout_s=0.2)  # fmt: skip
        except grpc.RpcError as error:
            if error.code() not in GONE:
                raise


def _call(channel: grpc.Channel, name: str, request: Any, timeout_s: float = PATIENCE_S) -> Any:
    response = getattr(pb, f"{name}Response")
    return channel.unary_unary(
        f"/kakeya.v1.DFlashProposerService/{name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )(request, timeout=timeout_s)


__all__ = ["PHASES", "Asked", "Said", "answer_of", "leave"]
