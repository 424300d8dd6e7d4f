"""Peers that gossip a tempting card and draft badly, each in its own way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.live.checkpoint import VOCAB_SIZE

CAPABILITY = "kakeya.v1.CapabilityService"
PROPOSER = "kakeya.v1.ProposerService"


def card_of(port: int, *, node_id: str = "liar", models: int = 1) -> pb.NodeCapability:
    """Faster than anybody, so that it is asked first."""
    card = pb.NodeCapability(
        node_id=node_id,
        grpc_address=f"127.0.0.1:{port}",
        platform="test",
        unified_memory_bytes=1 << 40,
        announced_at_unix=time.time(),  # noqa: TID251 - a peer has a clock of its own
        ttl_seconds=60,
    )
    for number in range(models):
        card.models.add(
            model_id="ngram" if number == 0 else f"model-{number}",
            role=pb.CAPABILITY_ROLE_PROPOSER,
            tokens_per_second=1e6,
        )
    return card


def exchange(channel: grpc.Channel):
    return channel.unary_unary(
        f"/{CAPABILITY}/ExchangeCapabilities",
        request_serializer=pb.ExchangeCapabilitiesRequest.SerializeToString,
        response_deserializer=pb.ExchangeCapabilitiesResponse.FromString,
    )


def probe(channel: grpc.Channel):
    return channel.unary_unary(
        f"/{CAPABILITY}/GetNodeCapability",
        request_serializer=pb.GetNodeCapabilityRequest.SerializeToString,
        response_deserializer=pb.GetNodeCapabilityResponse.FromString,
    )


def propose(channel: grpc.Channel):
    return channel.unary_unary(
        f"/{PROPOSER}/ProposeBlock",
        request_serializer=pb.ProposeBlockRequest.SerializeToString,
        response_deserializer=pb.ProposeBlockResponse.FromString,
    )


def announce(address: str, card: pb.NodeCapability) -> pb.ExchangeCapabilitiesResponse:
    """Push `card` to the node at `address`, as a peer does."""
    with grpc.insecure_channel(address) as channel:
        request = pb.ExchangeCapabilitiesRequest(known_nodes=[card])
        return exchange(channel)(request, timeout=10)


@dataclass
class Liar:
    """How one peer answers ProposeBlock, and how often it was asked."""

    how: str
    over: threading.Event = field(default_factory=threading.Event)
    asked: int = 0

    def propose(self, request, context):
        self.asked += 1
        wrong = (request.committed_token_ids[-1] + 101) % 256
        match self.how:
            case "too few":
                ids = [wrong] * (request.block_size - 1)
            case "too many":
                ids = [wrong] * (request.block_size + 7)
            case "beyond the vocabulary":
                ids = [VOCAB_SIZE, *[(1 << 32) - 1] * (request.block_size - 1)]
            case "wrong":
                ids = [wrong] * request.block_size
            case "slow":
                self.over.wait(5.0)
                ids = [wrong] * request.block_size
            case "raises":
                raise ValueError("this proposer is broken")
        return pb.ProposeBlockResponse(token_ids=ids)


@contextmanager
def lying(how: str) -> Iterator[tuple[int, Liar]]:
    """A grpcio peer; yields its port and its account."""
    liar = Liar(how)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    port = server.add_insecure_port("127.0.0.1:0")
    handlers = {
        CAPABILITY: {
            "ExchangeCapabilities": grpc.unary_unary_rpc_method_handler(
                lambda request, context: pb.ExchangeCapabilitiesResponse(
                    known_nodes=[card_of(port)]
                ),
                request_deserializer=pb.ExchangeCapabilitiesRequest.FromString,
                response_serializer=pb.ExchangeCapabilitiesResponse.SerializeToString,
            ),
            "GetNodeCapability": grpc.unary_unary_rpc_method_handler(
                lambda request, context: pb.GetNodeCapabilityResponse(node=card_of(port)),
                request_deserializer=pb.GetNodeCapabilityRequest.FromString,
                response_serializer=pb.GetNodeCapabilityResponse.SerializeToString,
            ),
        },
        PROPOSER: {
            "ProposeBlock": grpc.unary_unary_rpc_method_handler(
                liar.propose,
                request_deserializer=pb.ProposeBlockRequest.FromString,
                response_serializer=pb.ProposeBlockResponse.SerializeToString,
            ),
        },
    }
    for service, methods in handlers.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.start()
    try:
        yield port, liar
    finally:
        liar.over.set()
        server.stop(0).wait()


@contextmanager
def silent() -> Iterator[int]:
    """A port that accepts and never says a word."""
    held: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
        for each in held:
            each.close()
