"""grpcio's own health and reflection clients, as a command: HOST:PORT KEY QUESTION → one JSON.

In a process of its own: their protos and ours have one name each and cannot share a process.
"""

# ruff: noqa: T201 - a command that prints what it heard
from __future__ import annotations

import json
import sys

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

DEADLINE_S = 30.0


class WithKey(grpc.StreamStreamClientInterceptor):
    """Adds the bearer token to reflection's calls."""

    def __init__(self, key: str) -> None:
        self._key = key

    def intercept_stream_stream(self, continuation, details, requests):
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._key}")]
        return continuation(details._replace(metadata=metadata, timeout=DEADLINE_S), requests)


def check(channel, key):
    stub = health_pb2_grpc.HealthStub(channel)
    found = {}
    for name in ("", "kakeya.v1.ProposerService", "grpc.health.v1.Nothing"):
        try:
            request = health_pb2.HealthCheckRequest(service=name)
            answer = stub.Check(request, timeout=DEADLINE_S)
            found[name] = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
        except grpc.RpcError as error:
            found[name] = error.code().name
    return found


def watch(channel, key):
    """Statuses until the server ends; "watching" is printed at the first."""
    heard = []
    request = health_pb2.HealthCheckRequest(service="")
    try:
        events = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=DEADLINE_S)
        for event in events:
            heard.append(health_pb2.HealthCheckResponse.ServingStatus.Name(event.status))
            if len(heard) == 1:
                print("watching", flush=True)
    except grpc.RpcError as error:
        heard.append(error.code().name)
    return heard


def describe(channel, key):
    """Services, and for each its methods, all built from descriptors that came over the wire."""
    if key:
        channel = grpc.intercept_channel(channel, WithKey(key))
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    try:
        names = sorted(database.get_services())
    except grpc.RpcError as error:
        return error.code().name
    return {
        name: sorted(method.name for method in pool.FindServiceByName(name).methods)
        for name in names
    }


QUESTIONS = {"check": check, "watch": watch, "describe": describe}


def main(address: str, key: str, question: str) -> None:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=DEADLINE_S)
        print(json.dumps(QUESTIONS[question](channel, key)))


if __name__ == "__main__":
    main(*sys.argv[1:])
