"""In a network namespace of its own: the link goes dark without a reset, and comes back.

`unshare --net python -m tests.interop.black_hole`; prints what happened, in order.
"""

# ruff: noqa: T201 - a script that a test reads
from __future__ import annotations

import logging
import random
import subprocess
from dataclasses import replace

import structlog
import trio

from kakeya.rpc.channel import Channels, TcpDialer
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import open_server
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from tests.rpc.peers import LIMITS, Node, ask


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def main() -> None:
    link("up")
    limits = replace(LIMITS, keepalive_ack_s=0.3, check_s=0.05)
    server = await open_server("127.0.0.1", 0, limits=limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, Endpoint([Node().service], limits=limits))
        channels = Channels(dialer=TcpDialer(limits), limits=limits, rng=random.Random(1))
        await nursery.start(channels.serve)
        channel = channels.to(server.address)
        stub = NodeServiceStub(channel)
        print((await stub.GetFleet(ask("before"))).fleet_name)
        first = await channel.connected()
        await trio.sleep(0.1)
        link("down")
        with trio.move_on_after(0.2) as scope:
            await stub.GetFleet(ask("into the dark"))
        print("deadline" if scope.cancelled_caught else "no deadline")
        await trio.sleep(0.6)
        print("closed" if first.closed is not None else "still open")
        link("up")
        print((await stub.GetFleet(ask("after"))).fleet_name)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    trio.run(main)
