"""`kakeya bench`: speculation against plain decoding, in turns, with the ids compared.

With `--proposer` the verifier and the drafter are two processes that it starts.

`kakeya bench rpc` and `kakeya bench never-slower` run benchmarks of a checkout.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from kakeya.cli.bench_flags import BenchFlags, concurrencies_of
from kakeya.cli.bench_ground import wants_pair
from kakeya.cli.bench_report import as_table, scaling_table
from kakeya.cli.bench_rows import rows_of
from kakeya.cli.bench_scaling import measure_scaling
from kakeya.cli.bench_turns import measure
from kakeya.cli.exit_codes import Exit
from kakeya.cli.flags import NodeFlags, load_command_settings
from kakeya.config.settings import Settings
from kakeya.embedded.models import TINY
from kakeya.errors import demand

# Keeps one core busy until it is killed.
BURN = "while True: pass"
NO_CORES = "not held on cores: that needs Linux and two of them"
CHECKOUTS_OWN = {"rpc": "tests.bench.rpc_bench", "never-slower": "tests.bench.never_slower"}


def bench(
    what: str = "", *rest: str, given: BenchFlags | None = None, flags: NodeFlags | None = None
) -> int:
    """Measure speculation against plain decoding, side by side.

    Parameters
    ----------
    what
        Nothing; or, in a checkout, rpc: the RPC layer beside grpc.aio and others; never-slower:
        proposers that are wrong, late, far away or dying beside plain decoding.
    """
    asked = given or BenchFlags()
    if what in CHECKOUTS_OWN:
        given_rounds = ["--rounds", str(asked.rounds)] if asked.rounds != BenchFlags.rounds else []
        arguments = [*rest, *given_rounds, *(["--json"] if asked.json else [])]
        return _bench_of_checkout(what, arguments)
    known = ", ".join(CHECKOUTS_OWN)
    demand(not what, "INVALID_ARGUMENT", f"no benchmark {what!r}; there is {known}, or none named")
    demand(asked.rounds >= 1, "INVALID_ARGUMENT", f"--rounds is {asked.rounds}, at least 1")
    num_concurrencies = len(concurrencies_of(asked.concurrency))
    demand(
        num_concurrencies == 1 or not (asked.node or asked.embedded),
        "INVALID_ARGUMENT",
        f"--concurrency {asked.concurrency} needs nodes of its own",
    )
    demand(not (asked.rtt and asked.node), "INVALID_ARGUMENT", "--rtt needs nodes of its own")
    given_flags = flags or NodeFlags()
    if num_concurrencies > 1 and given_flags.verifier is None and given_flags.proposer is None:
        given_flags = replace(given_flags, verifier=TINY, proposer=(TINY,))
    settings = load_command_settings(given_flags)
    with _busy() if asked.busy else nullcontext():
        if asked.concurrency != "1" and wants_pair(asked, given_flags):
            return _scaling(asked, given_flags, settings)
        rows = rows_of(trio.run(measure, asked, given_flags, settings))
    if asked.json:
        print(msgspec.json.encode({"runs": rows}).decode())
    else:
        _print(as_table(rows))
    return Exit.OK if all(row["ids_equal"] for row in rows) else Exit.FAILURE


def _scaling(asked: BenchFlags, flags: NodeFlags, settings: Settings) -> int:
    rows, cores = trio.run(measure_scaling, asked, flags, settings)
    if asked.json:
        held = None if cores is None else asdict(cores)
        print(msgspec.json.encode({"scaling": rows, "cores": held}).decode())
    else:
        _print(scaling_table(rows))
    if cores is None:
        print(NO_CORES, file=sys.stderr)
    return Exit.OK if all(row["ids_equal"] for row in rows) else Exit.FAILURE


@contextmanager
def _busy() -> Iterator[None]:
    burning = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        yield
    finally:
        burning.kill()
        burning.wait()


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _bench_of_checkout(name: str, arguments: list[str]) -> int:
    module = CHECKOUTS_OWN[name]
    demand(
        importlib.util.find_spec("tests") is not None
        and importlib.util.find_spec(module) is not None,
        "UNAVAILABLE",
        f"the benchmark {name} is part of the checkout; run it there with `just bench {name}`",
    )
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode
