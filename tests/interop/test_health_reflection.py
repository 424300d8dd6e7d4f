"""Health and reflection as grpcio's client sees them, and as our own does."""

from __future__ import annotations

from contextlib import aclosing

import grpc
import pytest
import trio

from kakeya.rpc.health import Health, HealthService
from kakeya.rpc.reflection import reflection_services
from kakeya.rpc.security import guarded_by
from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.grpc.health.v1 import health_pb2
from kakeya.wire.pb.grpc.health.v1.health_grpc import HealthStub
from kakeya.wire.pb.grpc.reflection.v1 import reflection_pb2 as v1
from kakeya.wire.pb.grpc.reflection.v1.reflection_grpc import ServerReflectionStub
from kakeya.wire.pb.grpc.reflection.v1alpha import reflection_pb2 as v1alpha
from tests.interop.grpcio_peer import in_thread, serving
from tests.interop.test_grpcio import our_client
from tests.rpc.peers import Node

NODE = "kakeya.node.v1.NodeService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def health_call(channel, name, arity):
    return getattr(channel, arity)(
        f"/grpc.health.v1.Health/{name}",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )


@pytest.mark.spec("R-18")
async def test_grpcio_checks_and_watches_our_health_without_the_key():
    health = Health([NODE])
    services = [Node().service, HealthService(health).service]
    async with serving(services, admit=guarded_by("k" * 32)) as server:
        with grpc.insecure_channel(server.address) as channel:
            check = health_call(channel, "Check", "unary_unary")
            watch = health_call(channel, "Watch", "unary_stream")

            async def status(service):
                answer = await in_thread(check, health_pb2.HealthCheckRequest(service=service))
                return answer.status

            assert await status("") == NOT_SERVING
            events = watch(health_pb2.HealthCheckRequest(service=NODE))
            assert (await in_thread(next, events)).status == NOT_SERVING
            health.set_all(is_serving=True)
            assert (await in_thread(next, events)).status == SERVING
            assert await status(NODE) == SERVING
            events.cancel()
            with pytest.raises(grpc.RpcError) as caught:
                await status("nobody.Service")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.spec("R-18")
async def test_our_client_watches_health_and_an_unknown_service_is_told_so():
    health = Health([NODE])
    asked = health_pb2.HealthCheckRequest(service="nobody")
    async with (
        serving([HealthService(health).service]) as server,
        our_client(server.port) as stub_of_node,
    ):
        stub = HealthStub(stub_of_node.channel)
        with pytest.raises(RpcFailedError) as caught:
            await stub.Check(asked)
        assert status_name(caught.value) == "NOT_FOUND"
        with trio.fail_after(2):
            async with aclosing(stub.Watch(asked)) as events:
                assert (await anext(events)).status == UNKNOWN


@pytest.mark.spec("R-19")
@pytest.mark.parametrize("pb", [v1, v1alpha], ids=["v1", "v1alpha"])
async def test_grpcio_lists_and_describes_what_we_serve(pb):
    services = [Node().service]
    services += reflection_services([each.name for each in services])
    version = pb.DESCRIPTOR.package
    async with serving(services) as server:
        with grpc.insecure_channel(server.address) as channel:
            ask = channel.stream_stream(
                f"/{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=pb.ServerReflectionRequest.SerializeToString,
                response_deserializer=pb.ServerReflectionResponse.FromString,
            )
            questions = [
                pb.ServerReflectionRequest(list_services=""),
                pb.ServerReflectionRequest(file_containing_symbol=NODE),
                pb.ServerReflectionRequest(file_by_filename="kakeya/node/v1/node.proto"),
                pb.ServerReflectionRequest(file_containing_symbol="no.Such"),
            ]
            answers = await in_thread(lambda: list(ask(iter(questions))))
    listed = {each.name for each in answers[0].list_services_response.service}
    assert {NODE, f"{version}.ServerReflection"} <= listed
    for described in answers[1:3]:
        assert described.file_descriptor_response.file_descriptor_proto
    assert answers[3].error_response.error_code == 5


@pytest.mark.spec("R-19")
async def test_our_client_asks_one_question_after_another_on_one_stream():
    """purerpc's stub sends and receives in two tasks, begun in any order."""
    services = [Node().service]
    services += reflection_services([each.name for each in services])
    answered = trio.Event()

    async def questions():
        yield v1.ServerReflectionRequest(file_containing_symbol="no.Such")
        await answered.wait()
        yield v1.ServerReflectionRequest(file_containing_symbol=NODE)

    async with (
        serving(services) as server,
        our_client(server.port) as stub_of_node,
    ):
        stub = ServerReflectionStub(stub_of_node.channel)
        kinds = []
        with trio.fail_after(2):
            async with aclosing(stub.ServerReflectionInfo(questions())) as answers:
                async for answer in answers:
                    kinds.append(answer.WhichOneof("message_response"))
                    answered.set()
    assert kinds == ["error_response", "file_descriptor_response"]
