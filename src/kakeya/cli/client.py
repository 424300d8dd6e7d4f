"""How a command reaches a running node: the one named, or the one on this host."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kakeya.config.settings import ConfigError, Settings
from kakeya.errors import STATUS_NAMES, Refused, demand
from kakeya.node.identity import call_metadata, tls_files
from kakeya.rpc.channel import Channels, TcpDialer
from kakeya.rpc.security import dialling_tls, read_fleet_key
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# Loopback answers in a millisecond; a firewall that drops packets must not hold a command up.
PROBE_S = 1.0


async def local_address(settings: Settings, node: str | None) -> str:
    """HOST:PORT of the node to ask.  Raises Refused(UNAVAILABLE) when none runs here."""
    if node:
        demand(":" in node, "INVALID_ARGUMENT", f"--node is {node!r}, it must be HOST:PORT")
        return node
    there = await answers("127.0.0.1", settings.port)
    demand(
        there,
        "UNAVAILABLE",
        f"no node answers on 127.0.0.1:{settings.port}; start one with `kakeya run`"
        " or name one with --node HOST:PORT",
    )
    return f"127.0.0.1:{settings.port}"


@asynccontextmanager
async def stub_at(address: str, settings: Settings) -> AsyncIterator[NodeServiceStub]:
    """A stub for the node at `address`; its calls raise RpcFailedError."""
    async with open_channels(settings) as channels:
        yield NodeServiceStub(channels.to(address))


@asynccontextmanager
async def open_channels(settings: Settings) -> AsyncIterator[Channels]:
    """Connections to nodes, with the certificate and the key of a node of these settings."""
    read_credentials(settings)
    channels = Channels(
        dialer=TcpDialer(settings.rpc, dialling_tls(tls_files(settings))),
        limits=settings.rpc,
        rng=random.Random(os.urandom(8)),
        metadata=call_metadata(settings, os.environ),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(channels.serve)
        yield channels
        nursery.cancel_scope.cancel()


def read_credentials(settings: Settings) -> str:
    """The fleet's key, or "".  Raises ConfigError when it or a TLS file is not sound."""
    try:
        dialling_tls(tls_files(settings))
        return read_fleet_key(settings.fleet_key_file, os.environ)
    except Refused as error:
        raise ConfigError(error.why) from None


async def answers(host: str, port: int) -> bool:
    with trio.move_on_after(PROBE_S):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except OSError:
            return False
        await trio.aclose_forcefully(stream)
        return True
    return False


def refusal_of(error: RpcFailedError) -> Refused:
    """A failed call as the one error that commands turn into a line and an exit status."""
    name = status_name(error)
    return Refused(name if name in STATUS_NAMES else "UNKNOWN", status_text(error))
