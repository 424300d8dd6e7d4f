"""How fast calls are beside grpc.aio: `python -m tests.bench.rpc_bench [--json] [--quick]`.

The engines take turns within each round; a ratio is the median over rounds of ours to grpc.aio's
time in the same round (below 1: faster).  One process and two, calls of 1 and 8 in flight,
messages each way, mutual TLS likewise; and how long large messages hold a loop (rpc_lag).
"""

# ruff: noqa: T201 - a command that prints what it measured
from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.wrappers_pb2 import BytesValue

from tests.bench import rpc_lag
from tests.bench.rpc_engines import ENGINES
from tests.interop.certificates import HAS_OPENSSL, Identity, issue, make_ca

KB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Test:
    """`count` calls of a request, `flights` at a time; `num_bytes` is the larger message's size."""

    name: str
    request: BytesValue
    count: int
    flights: int
    num_bytes: int


def tests(sizes: list[int], calls: int) -> list[Test]:
    small = BytesValue(value=bytes(64))
    out = [
        Test("unary, 1 in flight", small, calls, 1, 64),
        Test("unary, 8 in flight", small, calls, 8, 64),
    ]
    for size in sizes:
        count = max(1, min(50, 24 * MB // size))
        out.append(Test("up", BytesValue(value=bytes(size)), count, 1, size))
        out.append(Test("down", BytesValue(value=b"=%d" % size), count, 1, size))
    return out


async def timed(engine: Any, port: int, test: Test) -> float:
    """Seconds a call, after a few calls to warm up."""
    async with engine.client(port) as call:
        await engine.together(call, test.request, min(test.count, 2 * test.flights), test.flights)
        begun = time.perf_counter()
        await engine.together(call, test.request, test.count, test.flights)
        return (time.perf_counter() - begun) / test.count


async def alone(engine: Any, test: Test) -> float:
    """Caller and server on one loop."""
    async with engine.serve() as port:
        return await timed(engine, port, test)


async def serve_forever(engine: Any) -> None:
    async with engine.serve() as port:
        print(port, flush=True)
        await engine.forever()


class Child:
    """An engine's server in a process of its own."""

    def __init__(self, name: str, identity: Identity | None = None) -> None:
        command = [sys.executable, "-m", "tests.bench.rpc_bench", "--serve", name]
        if identity is not None:
            command += ["--identity", json.dumps(asdict(identity))]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(test: Test, names: list[str], rounds: int, children: dict[str, Child]) -> dict:
    """One row: median seconds a call of each engine, and the median ratio."""
    names = [name for name in names if test.num_bytes <= ENGINES[name].max_bytes]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        # Who goes first changes, so that nobody always runs on a warm machine.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            engine = ENGINES[name]
            if children:
                seconds[name].append(engine.run(timed, engine, children[name].port, test))
            else:
                seconds[name].append(engine.run(alone, engine, test))
    ratios = [ours / aio for ours, aio in zip(seconds["ours"], seconds["aio"], strict=True)]
    row: dict[str, Any] = {
        "test": test.name,
        "bytes": test.num_bytes,
        "processes": 2 if children else 1,
        "tls": ENGINES["ours"].identity is not None,
        "ratio": round(statistics.median(ratios), 3),
        "rounds": rounds,
    }
    for name in names:
        row[f"{name}_s"] = statistics.median(seconds[name])
    return row


def with_tls(rounds: int, sizes: list[int], calls: int, *, tells: bool) -> list[dict]:
    """The same with mutual TLS on both sides, ours and grpc.aio's."""
    rows = []
    names = ["aio", "ours"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        identity = issue(folder, make_ca(folder, "fleet-ca"), "attic")
        for engine in names:
            ENGINES[engine].identity = identity
        for processes in (1, 2):
            children = {n: Child(n, identity) for n in names} if processes == 2 else {}
            for test in tests(sizes, calls):
                rows.append(measure(test, names, rounds, children))
                if tells:
                    print("mTLS ", show(rows[-1]), flush=True)
            for child in children.values():
                child.close()
        for engine in names:
            ENGINES[engine].identity = None
    return rows


def show(row: dict) -> str:
    times = "  ".join(f"{k[:-2]} {v * 1e3:9.3f}" for k, v in row.items() if k.endswith("_s"))
    size = f"{row['bytes'] / KB:.0f} KB" if row["bytes"] >= KB else f"{row['bytes']} B"
    what = f"{row['processes']} proc  {row['test']:<20}{size:>9}"
    return f"{what}  ratio {row['ratio']:.2f}  ms: {times}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--engines", default="aio,ours,stock,raw")
    parser.add_argument("--large", action="store_true", help="400 MB messages too")
    parser.add_argument("--serve", default="")
    parser.add_argument("--identity", default="")
    wanted = parser.parse_args()
    if wanted.serve:
        if wanted.identity:
            ENGINES[wanted.serve].identity = Identity(**json.loads(wanted.identity))
        ENGINES[wanted.serve].run(serve_forever, ENGINES[wanted.serve])
        return
    # Stock purerpc logs every connection that ends.
    logging.disable(logging.CRITICAL)
    names = wanted.engines.split(",")
    rounds = wanted.rounds or (3 if wanted.quick else 5)
    sizes = [256 * KB, 12 * MB] if wanted.quick else [256 * KB, 2 * MB, 12 * MB, 64 * MB]
    sizes += [400 * MB] if wanted.large else []
    rows = []
    for processes in (1, 2):
        children = {name: Child(name) for name in names} if processes == 2 else {}
        for test in tests(sizes, 300 if wanted.quick else 1000):
            rows.append(measure(test, names, rounds, children))
            if not wanted.json:
                print(show(rows[-1]), flush=True)
        for child in children.values():
            child.close()
    if HAS_OPENSSL:
        rows += with_tls(rounds, sizes, 300 if wanted.quick else 1000, tells=not wanted.json)
    lags = rpc_lag.rows(("bulk", "pb"), 64 * MB, rounds)
    if wanted.json:
        print(json.dumps({"rows": rows, "lags": lags}))
        return
    for row in lags:
        print(rpc_lag.show(row))


if __name__ == "__main__":
    main()
