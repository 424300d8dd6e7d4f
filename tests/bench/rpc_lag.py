"""How long a large message keeps a loop from its other tasks: `python -m tests.bench.rpc_lag`.

A 1 ms ticker runs on the loop while 64 MB of tensors go up (SeedContext, whose handler decodes
them) and down (Restore); its largest lag is what any other call would have waited.  Wall time and
the loop's own CPU time are told: what other programs take of the machine is in the first only.
`bulk` are the messages of wire/bulk, `pb` the generated ones.
"""

# ruff: noqa: T201 - a command that prints what it measured
from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.config.wire import WireLimits
from kakeya.rpc.channel import Channels, TcpDialer
from kakeya.rpc.endpoint import Endpoint
from kakeya.rpc.listener import open_server
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import (
    DFlashProposerServiceServicer,
    DFlashProposerServiceStub,
)
from kakeya.wire.tensor import WireArray, decode, encode, viewed

MB = 1 << 20
LIMITS, WIRE = RpcLimits(), WireLimits()
NUM_TENSORS = 8


@dataclass
class Drafter(DFlashProposerServiceServicer):
    """Takes aux and gives banks of `size` bytes; `form` is bulk or pb."""

    form: str
    size: int

    def __post_init__(self) -> None:
        self.tensors = tensors(self.form, self.size)

    async def SeedContext(self, input_message):  # type: ignore[override]
        rows = 0
        for number, tensor in enumerate(input_message.aux):
            array = decode(tensor, f"aux[{number}]", limits=WIRE)
            rows += array.bits.shape[0]
            await trio.lowlevel.checkpoint()
        return pb.SeedContextResponse(context_len=rows)

    async def Restore(self, input_message):  # type: ignore[override]
        made = bulk if self.form == "bulk" else pb
        pairs = zip(self.tensors[::2], self.tensors[1::2], strict=True)
        layers = [made.LayerKV(layer=n, k=k, v=v) for n, (k, v) in enumerate(pairs)]
        return made.RestoreResponse(restored=layers, prompt_len=1)


def tensors(form: str, size: int) -> list[Any]:
    arrays = [
        WireArray("bfloat16", np.ones((size // NUM_TENSORS // 2048, 1024), np.uint16))
        for _ in range(NUM_TENSORS)
    ]
    return [viewed(each) if form == "bulk" else encode(each) for each in arrays]


@asynccontextmanager
async def serving(form: str, size: int) -> AsyncIterator[int]:
    readers = bulk.readers(WIRE) if form == "bulk" else {}
    endpoint = Endpoint([Drafter(form, size).service], limits=LIMITS, readers=readers)
    server = await open_server("127.0.0.1", 0, limits=LIMITS)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, endpoint)
        yield server.port
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def calling(form: str, port: int) -> AsyncIterator[DFlashProposerServiceStub]:
    channels = Channels(
        dialer=TcpDialer(LIMITS),
        limits=LIMITS,
        rng=random.Random(1),
        readers=bulk.readers(WIRE) if form == "bulk" else {},
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(channels.serve)
        yield DFlashProposerServiceStub(channels.to(f"127.0.0.1:{port}"))
        nursery.cancel_scope.cancel()


@dataclass
class Lag:
    """The largest gap between two ticks of 1 ms, beyond that 1 ms."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    async def watch(self) -> None:
        while True:
            begun, begun_cpu = time.perf_counter(), time.thread_time()
            await trio.sleep(0.001)
            self.wall_s = max(self.wall_s, time.perf_counter() - begun - 0.001)
            self.cpu_s = max(self.cpu_s, time.thread_time() - begun_cpu)


async def lag_of(act: Callable[[], Awaitable[Any]]) -> tuple[Lag, float]:
    """The lag on this loop while `act` runs, and how long that took (s)."""
    lag = Lag()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lag.watch)
        await trio.sleep(0.02)
        lag.wall_s = lag.cpu_s = 0.0
        begun = time.perf_counter()
        await act()
        took_s = time.perf_counter() - begun
        await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    return lag, took_s


async def measure(form: str, size: int, rounds: int, port: int) -> list[dict[str, Any]]:
    given = tensors(form, size)
    made = bulk if form == "bulk" else pb

    async with calling(form, port) as stub:

        async def up() -> None:
            await stub.SeedContext(made.SeedContextRequest(session_id="s", aux=given))

        async def down() -> None:
            answer = await stub.Restore(pb.RestoreRequest(session_id="s"))
            for layer in answer.restored:
                decode(layer.k, "k", limits=WIRE)
                decode(layer.v, "v", limits=WIRE)

        rows = []
        for name, act in (("up", up), ("down", down)):
            found = []
            for _ in range(rounds):
                gc.collect()
                found.append(await lag_of(act))
            row: dict[str, Any] = {"form": form, "way": name, "bytes": size, "rounds": rounds}
            row["took_ms"] = statistics.median(took for _, took in found) * 1e3
            for clock in ("wall", "cpu"):
                lags = [getattr(lag, f"{clock}_s") * 1e3 for lag, _ in found]
                row[f"{clock}_ms"] = statistics.median(lags)
                row[f"largest_{clock}_ms"] = max(lags)
            rows.append(row)
    return rows


async def alone(form: str, size: int, rounds: int) -> list[dict[str, Any]]:
    """Both sides on one loop."""
    async with serving(form, size) as port:
        return await measure(form, size, rounds, port)


async def serve_forever(form: str, size: int) -> None:
    """Print the port and, for each line of stdin, this loop's largest lag since the last one."""
    lag = Lag()
    async with serving(form, size) as port, trio.open_nursery() as nursery:
        nursery.start_soon(lag.watch)
        print(port, flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            print(lag.wall_s * 1e3, lag.cpu_s * 1e3, flush=True)
            lag.wall_s = lag.cpu_s = 0.0
        nursery.cancel_scope.cancel()


def apart(form: str, size: int, rounds: int) -> list[dict[str, Any]]:
    """The other side in a process of its own; its lag is told as well."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.rpc_lag",
        "--serve",
        form,
        "--mb",
        str(size // MB),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        rows = trio.run(measure, form, size, rounds, port)
        child.stdin.write("\n")
        child.stdin.flush()
        wall_ms, cpu_ms = map(float, child.stdout.readline().split())
        for row in rows:
            row["server_largest_wall_ms"], row["server_largest_cpu_ms"] = wall_ms, cpu_ms
        child.stdin.close()
    return rows


def rows(forms: Iterable[str], size: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each form, number of processes and way."""
    found = []
    for form in forms:
        for processes in (1, 2):
            if processes == 1:
                measured = trio.run(alone, form, size, rounds)
            else:
                measured = apart(form, size, rounds)
            found += [{"processes": processes, **row} for row in measured]
    return found


def show(row: dict[str, Any]) -> str:
    what = f"{row['bytes'] / MB:.0f} MB {row['way']:<5}{row['form']:<5}{row['processes']} proc"
    lags = f"wall {row['wall_ms']:.1f} (largest {row['largest_wall_ms']:.1f})"
    lags += f"  cpu {row['cpu_ms']:.1f} (largest {row['largest_cpu_ms']:.1f})"
    if "server_largest_wall_ms" in row:
        lags += f"  server: wall {row['server_largest_wall_ms']:.1f}"
        lags += f" cpu {row['server_largest_cpu_ms']:.1f}"
    return f"{what}  took {row['took_ms']:.0f} ms  lag ms: {lags}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--forms", default="bulk,pb")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", default="")
    wanted = parser.parse_args()
    if wanted.serve:
        trio.run(serve_forever, wanted.serve, wanted.mb * MB)
        return
    found = rows(wanted.forms.split(","), wanted.mb * MB, wanted.rounds)
    if wanted.json:
        print(json.dumps(found))
        return
    for row in found:
        print(show(row))


if __name__ == "__main__":
    main()
