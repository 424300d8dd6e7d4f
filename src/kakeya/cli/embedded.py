"""A whole node inside a command, for when none runs on this host."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from kakeya.cli.client import answers, local_address, stub_at
from kakeya.config.settings import Settings
from kakeya.node.backend import this_host
from kakeya.node.preflight import demand_loadable
from kakeya.node.run import run_node
from kakeya.node.seams import embedded_seams
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub


@asynccontextmanager
async def node_stub(
    *, node: str | None, embedded: bool, settings: Settings
) -> AsyncIterator[NodeServiceStub]:
    """A stub for `node` (HOST:PORT); else for the node of this host; else for an embedded one.

    Spec: N-10.
    """
    is_there = node or (not embedded and await answers("127.0.0.1", settings.port))
    if is_there:
        async with stub_at(await local_address(settings, node), settings) as stub:
            yield stub
        return
    here = _only_here(settings)
    async with trio.open_nursery() as nursery:
        running = await nursery.start(run_node, here, embedded_seams(here))
        async with stub_at(running.grpc_address, settings) as stub:
            yield stub
        nursery.cancel_scope.cancel()


def _only_here(settings: Settings) -> Settings:
    """A node on ports of its own and without a kept identity: it ends with the command.

    Raises Refused, ConfigError for models that cannot be loaded.
    """
    demand_loadable(settings, os.environ, this_host())
    return replace(settings, host="127.0.0.1", port=0, http_port="off")
