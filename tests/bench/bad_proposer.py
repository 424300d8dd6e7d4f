"""A proposer in a process of its own that speaks the contract and drafts as badly as it is told.

    python -m tests.bench.bad_proposer --how wrong --port 0 --node-id liar --peer HOST:PORT

Announces itself to the peer, prints `ready grpc=HOST:PORT`, and serves until it is killed.
`wrong` answers at once with ids the text does not go on with; `copy` with what followed the last
time, which is often right; both `--late-ms` later.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from concurrent import futures
from contextlib import suppress

import grpc

from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.ngram import NgramProposer
from kakeya.wire.pb.kakeya.node.v1 import drafters_pb2
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from tests.live.garbage import CAPABILITY, PROPOSER, exchange

DRAFTERS = "kakeya.node.v1.DrafterService"
ANNOUNCE_S = 0.5
MAX_CONTEXT_LEN, MAX_NUM_DRAFTS = 2048, 16


def card_of(wanted: argparse.Namespace, port: int) -> pb.NodeCapability:
    """Faster than anybody, so that it is asked first."""
    card = pb.NodeCapability(
        node_id=wanted.node_id,
        grpc_address=f"127.0.0.1:{port}",
        platform="test",
        unified_memory_bytes=1 << 40,
        announced_at_unix=time.time(),  # noqa: TID251 - a peer has a clock of its own
        ttl_seconds=60,
    )
    card.models.add(
        model_id=wanted.node_id, role=pb.CAPABILITY_ROLE_PROPOSER, tokens_per_second=1e6
    )
    return card


class Proposer:
    """Drafts for one text after the other, as `how` says."""

    def __init__(self, wanted: argparse.Namespace) -> None:
        self._wanted = wanted
        self._ngram, self._lock = NgramProposer(DraftingLimits()), threading.Lock()

    def propose(self, request, context) -> pb.ProposeBlockResponse:
        time.sleep(self._wanted.late_ms / 1e3)
        ids = list(request.committed_token_ids)
        if self._wanted.how == "wrong":
            # Just behind the last id: no text of the tiny models goes on so.
            drafts = [
                (ids[-1] + 1 + i) % self._wanted.vocab_size for i in range(request.block_size)
            ]
            return pb.ProposeBlockResponse(token_ids=drafts)
        with self._lock:
            draft = self._ngram.propose(ids, num_drafts=request.block_size, num_steps=1)
        return pb.ProposeBlockResponse(token_ids=draft.ids)

    def drafters(self, request, context) -> drafters_pb2.ListDraftersResponse:
        answer = drafters_pb2.ListDraftersResponse()
        answer.proposers.add(
            model_id=self._wanted.node_id,
            vocab_size=self._wanted.vocab_size,
            max_context_len=MAX_CONTEXT_LEN,
            max_num_drafts=MAX_NUM_DRAFTS,
            num_steps=1,
        )
        return answer


def handlers_of(
    wanted: argparse.Namespace, own_card
) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
    """The three services; own_card: gives the card as it is now."""
    proposer, unary = Proposer(wanted), grpc.unary_unary_rpc_method_handler
    return {
        CAPABILITY: {
            "ExchangeCapabilities": unary(
                lambda request, context: pb.ExchangeCapabilitiesResponse(known_nodes=[own_card()]),
                pb.ExchangeCapabilitiesRequest.FromString,
                pb.ExchangeCapabilitiesResponse.SerializeToString,
            ),
            "GetNodeCapability": unary(
                lambda request, context: pb.GetNodeCapabilityResponse(node=own_card()),
                pb.GetNodeCapabilityRequest.FromString,
                pb.GetNodeCapabilityResponse.SerializeToString,
            ),
        },
        PROPOSER: {
            "ProposeBlock": unary(
                proposer.propose,
                pb.ProposeBlockRequest.FromString,
                pb.ProposeBlockResponse.SerializeToString,
            ),
        },
        DRAFTERS: {
            "ListDrafters": unary(
                proposer.drafters,
                drafters_pb2.ListDraftersRequest.FromString,
                drafters_pb2.ListDraftersResponse.SerializeToString,
            ),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=("wrong", "copy"), required=True)
    parser.add_argument("--late-ms", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--node-id", required=True)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--vocab-size", type=int, default=2048)
    wanted = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    port = server.add_insecure_port(f"127.0.0.1:{wanted.port}")
    for service, methods in handlers_of(wanted, lambda: card_of(wanted, port)).items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.start()
    sys.stdout.write(f"ready grpc=127.0.0.1:{port}\n")
    sys.stdout.flush()
    with grpc.insecure_channel(wanted.peer) as channel:
        while True:
            card = card_of(wanted, port)
            with suppress(grpc.RpcError):  # it is told again
                exchange(channel)(pb.ExchangeCapabilitiesRequest(known_nodes=[card]), timeout=5)
            time.sleep(ANNOUNCE_S)


if __name__ == "__main__":
    sys.exit(main())
