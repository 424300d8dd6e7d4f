"""Messages with tensors between wire/bulk on our side and grpcio with protobuf on the other."""

from __future__ import annotations

import random
from concurrent import futures

import grpc
import pytest
import trio

from kakeya.rpc.channel import Channels
from kakeya.rpc.dialing import TcpDialer
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import open_server
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.interop.grpcio_peer import LIMITS, OPTIONS, in_thread
from tests.rpc.drafter import READERS, Drafter, array, expected, restored, tensor

SERVICE = "kakeya.v1.DFlashProposerService"
# 16 MB a tensor.
ROWS = 16 << 10


@pytest.mark.spec("W-14")
async def test_grpcios_client_sends_us_tensors_and_reads_ours():
    node = Drafter()
    server = await open_server("127.0.0.1", 0, limits=LIMITS)
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint([node.service], limits=LIMITS, readers=READERS)
        await nursery.start(server.serve, endpoint)
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            seed = channel.unary_unary(
                f"/{SERVICE}/SeedContext",
                request_serializer=pb.SeedContextRequest.SerializeToString,
                response_deserializer=pb.SeedContextResponse.FromString,
            )
            restore = channel.unary_unary(
                f"/{SERVICE}/Restore",
                request_serializer=pb.RestoreRequest.SerializeToString,
                response_deserializer=pb.RestoreResponse.FromString,
            )
            request = pb.SeedContextRequest(aux=[tensor("pb", ROWS, n) for n in range(2)])
            answer = await in_thread(seed, request)
            assert answer.context_len == 2 * ROWS
            assert [bytes(t.data) for t in node.heard[0].aux] == [
                array(ROWS, n).bits.tobytes() for n in range(2)
            ]
            answer = await in_thread(restore, pb.RestoreRequest(prompt_ids=range(ROWS // 4)))
            assert restored(answer) == expected(ROWS // 4)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("W-14")
async def test_grpcios_server_reads_our_tensors_and_sends_us_its_own():
    heard = []

    def seed(request, context):
        heard.append(request)
        return pb.SeedContextResponse(context_len=len(request.aux))

    def restore(request, context):
        layers = [
            pb.LayerKV(layer=at, k=tensor("pb", ROWS, at), v=tensor("pb", ROWS, at + 1))
            for at in (3, 5)
        ]
        return pb.RestoreResponse(restored=layers, prompt_len=7)

    handlers = {
        "SeedContext": grpc.unary_unary_rpc_method_handler(
            seed,
            request_deserializer=pb.SeedContextRequest.FromString,
            response_serializer=pb.SeedContextResponse.SerializeToString,
        ),
        "Restore": grpc.unary_unary_rpc_method_handler(
            restore,
            request_deserializer=pb.RestoreRequest.FromString,
            response_serializer=pb.RestoreResponse.SerializeToString,
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channels = Channels(
        dialer=TcpDialer(LIMITS), limits=LIMITS, rng=random.Random(3), readers=READERS
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(channels.serve)
        stub = DFlashProposerServiceStub(channels.to(f"127.0.0.1:{port}"))
        aux = [tensor("bulk", ROWS, n) for n in range(2)]
        answer = await stub.SeedContext(bulk.SeedContextRequest("ŝ", aux, range(ROWS)))
        assert answer.context_len == 2
        assert (heard[0].session_id, list(heard[0].positions)) == ("ŝ", list(range(ROWS)))
        assert [t.data for t in heard[0].aux] == [array(ROWS, n).bits.tobytes() for n in range(2)]
        answer = await stub.Restore(pb.RestoreRequest())
        assert restored(answer) == expected(ROWS)
        assert answer.prompt_len == 7
        nursery.cancel_scope.cancel()
    await in_thread(server.stop(0).wait)
