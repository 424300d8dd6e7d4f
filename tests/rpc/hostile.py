"""Hostile connections from a seed: `python -m tests.rpc.hostile --connections 10000 --seed 1`.

Each storm runs many connections of every kind against one endpoint while another connection's
calls go on; afterwards no task, stream or byte is left.
"""

# ruff: noqa: T201 - a command that prints what it found
from __future__ import annotations

import argparse
import logging
import random
import sys
from dataclasses import replace

import structlog
import trio
import trio.testing

from kakeya.rpc import frames
from kakeya.rpc.channel import Channels
from kakeya.rpc.endpoint import Endpoint, Peer
from kakeya.rpc.headers import literal
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from tests.rpc.peers import LIMITS, LinkDialer, Node, ask
from tests.rpc.raw import GREETING, HELLO, REQUEST, call, data, frame, headers, message

CANCEL = (8).to_bytes(4, "big")
WAIT = message(ask("wait 3").SerializeToString())


def random_frames(rng: random.Random) -> bytes:
    out = [GREETING]
    for _ in range(rng.randrange(1, 40)):
        kind, flags = rng.randrange(12), rng.choice([0, 1, 4, 5, 8, 0x20, rng.randrange(256)])
        stream_id = rng.choice([0, 1, 3, 5, 7, rng.randrange(1 << 31)])
        payload = rng.choice([b"", REQUEST, HELLO, rng.randbytes(rng.randrange(64)), bytes(4)])
        out.append(frame(kind, flags, stream_id, payload))
    return b"".join(out)


def damaged_call(rng: random.Random) -> bytes:
    raw = bytearray(GREETING + call(1) + call(3, WAIT) + call(5))
    for _ in range(rng.randrange(1, 6)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


def cut_call(rng: random.Random) -> bytes:
    raw = GREETING + call(1) + call(3, WAIT)
    return raw[: rng.randrange(len(raw))]


def reset_flood(rng: random.Random) -> bytes:
    count = rng.randrange(1, 3000)
    return GREETING + b"".join(
        headers(i) + frame(frames.RST_STREAM, 0, i, CANCEL) for i in range(1, 2 * count, 2)
    )


def cheap_flood(rng: random.Random) -> bytes:
    cheap = [
        frame(frames.PING, 0, 0, bytes(8)),
        frames.settings({}),
        frame(frames.PRIORITY, 0, 1, bytes(5)),
        headers(1) + data(1, b"", 0),
        frame(frames.WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
    ]
    return GREETING + rng.choice(cheap) * rng.randrange(1, 3000)


def continuation_flood(rng: random.Random) -> bytes:
    piece = literal("x-a", "b" * rng.randrange(100))
    rest = frame(frames.CONTINUATION, 0, 1, piece) * rng.randrange(1, 500)
    return GREETING + headers(1, REQUEST, 0) + rest


def oversize_prefix(rng: random.Random) -> bytes:
    size = rng.choice([0xFFFFFFFF, LIMITS.max_message_bytes, 100 << 20]).to_bytes(4, "big")
    return GREETING + b"".join(headers(i) + data(i, b"\0" + size, 0) for i in range(1, 99, 2))


def half_open(rng: random.Random) -> bytes:
    return GREETING + b"".join(headers(i) for i in range(1, rng.randrange(2, 600), 2))


def no_window(rng: random.Random) -> bytes:
    greeting = frames.PREFACE + frames.settings({4: rng.randrange(3)}) + frames.SETTINGS_ACK
    big = message(ask("big 300000").SerializeToString())
    return greeting + b"".join(call(i, big) for i in range(1, 41, 2))


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 500))


STORMS = (
    random_frames,
    damaged_call,
    cut_call,
    reset_flood,
    cheap_flood,
    continuation_flood,
    oversize_prefix,
    half_open,
    no_window,
    noise,
)


async def attack(endpoint: Endpoint, rng: random.Random) -> None:
    """One hostile connection, which leaves in one of several ways."""
    raw = rng.choice(STORMS)(rng)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.serve_stream, theirs, Peer("hostile"))
        try:
            if rng.random() < 0.2:
                for at in range(0, min(len(raw), 300), 7):  # a slow drip
                    await ours.send_all(raw[at : at + 7])
                    await trio.sleep(rng.uniform(0, 1))
            else:
                await ours.send_all(raw)
            if rng.random() < 0.5:
                with trio.move_on_after(rng.uniform(0, 100)):
                    while await ours.receive_some(65536):
                        pass
            else:
                await trio.sleep(rng.uniform(0, 100))
        except trio.BrokenResourceError:
            pass
        await trio.aclose_forcefully(ours)


async def storm(seed: int, num_connections: int) -> dict[str, int]:
    """Run one storm; what is left after it, by name: all zero when the engine holds."""
    rng = random.Random(seed)
    node = Node()
    limits = replace(LIMITS, connection_budget_bytes=8 << 20, node_budget_bytes=32 << 20)
    endpoint = Endpoint([node.service], limits=limits)
    disturbed, peak_bytes = 0, 0
    async with trio.open_nursery() as nursery:
        dialer = LinkDialer({"there:1": endpoint}, nursery)
        channels = Channels(dialer=dialer, limits=LIMITS, rng=random.Random(seed))
        await nursery.start(channels.serve)
        stub = NodeServiceStub(channels.to("there:1"))
        await stub.GetFleet(ask())
        baseline = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as storming:
            for _ in range(num_connections):
                storming.start_soon(attack, endpoint, random.Random(rng.random()))
                await trio.sleep(rng.uniform(0, 1))
                peak_bytes = max(peak_bytes, endpoint.held_bytes)
                try:
                    with trio.fail_after(5):
                        answer = await stub.GetFleet(ask("quiet"))
                    disturbed += answer.fleet_name != "quiet"
                except Exception as error:
                    print(f"seed {seed}: a quiet call failed: {error!r}")
                    disturbed += 1
        await trio.sleep(10)
        left = {
            "tasks": trio.lowlevel.current_statistics().tasks_living - baseline,
            "connections": endpoint.num_connections - 1,
            "calls": endpoint.num_calls,
            "handlers": node.running,
            "bytes": endpoint.held_bytes,
            "bytes over the budget": max(0, peak_bytes - limits.node_budget_bytes),
            "calls disturbed": disturbed,
            "connections made anew": len(dialer.streams) - 1,
        }
        nursery.cancel_scope.cancel()
    return left


def main() -> int:
    """Storms until `--connections` were made; the seeds of those that left something."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--per-storm", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    failed, done, seed = 0, 0, wanted.seed
    while done < wanted.connections:
        clock = trio.testing.MockClock(autojump_threshold=0)
        left = trio.run(storm, seed, wanted.per_storm, clock=clock)
        if any(left.values()):
            print(f"seed {seed} left {left}")
            failed += 1
        done += wanted.per_storm
        seed += 1
    print(f"{done} hostile connections, {seed - wanted.seed} seeds, {failed} left something")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
