"""`kakeya bench`: speculation against plain decoding, in turns, with the ids compared.

With `--proposer` the verifier and the drafter are two processes that it starts.

`kakeya bench rpc` runs the RPC layer's benchmark of a checkout.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import msgspec
import trio
from rich.console import Console

from kakeya.cli.bench_flags import BenchFlags
from kakeya.cli.bench_report import as_table
from kakeya.cli.bench_rows import rows_of
from kakeya.cli.bench_turns import measure
from kakeya.cli.exit_codes import Exit
from kakeya.cli.flags import NodeFlags, load_command_settings
from kakeya.errors import demand

# Keeps one core busy until it is killed.
BURN = "while True: pass"
# What node.max_generations and its queue take by default.
MAX_CONCURRENCY = 64
RPC_BENCH = "tests.bench.rpc_bench"


def bench(
    what: str = "", *rest: str, given: BenchFlags | None = None, flags: NodeFlags | None = None
) -> int:
    """Measure speculation against plain decoding, side by side.

    Parameters
    ----------
    what
        Nothing, or rpc: the RPC layer beside grpc.aio and others (in a checkout).
    """
    asked = given or BenchFlags()
    if what == "rpc":
        given_rounds = ["--rounds", str(asked.rounds)] if asked.rounds != BenchFlags.rounds else []
        return _bench_rpc([*rest, *given_rounds, *(["--json"] if asked.json else [])])
    demand(not what, "INVALID_ARGUMENT", f"no benchmark {what!r}; there is rpc, or none named")
    demand(asked.rounds >= 1, "INVALID_ARGUMENT", f"--rounds is {asked.rounds}, at least 1")
    demand(
        1 <= asked.concurrency <= MAX_CONCURRENCY,
        "INVALID_ARGUMENT",
        f"--concurrency is {asked.concurrency}, at least 1 and at most {MAX_CONCURRENCY}",
    )
    demand(not (asked.rtt and asked.node), "INVALID_ARGUMENT", "--rtt needs nodes of its own")
    settings = load_command_settings(flags)
    burning = subprocess.Popen([sys.executable, "-c", BURN]) if asked.busy else None
    try:
        pairs = trio.run(measure, asked, flags or NodeFlags(), settings)
    finally:
        if burning is not None:
            burning.kill()
            burning.wait()
    rows = rows_of(pairs)
    if asked.json:
        print(msgspec.json.encode({"runs": rows}).decode())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(as_table(rows))
    return Exit.OK if all(row["ids_equal"] for row in rows) else Exit.FAILURE


def _bench_rpc(arguments: list[str]) -> int:
    demand(
        importlib.util.find_spec("tests") is not None
        and importlib.util.find_spec(RPC_BENCH) is not None,
        "UNAVAILABLE",
        "the RPC benchmark is part of the checkout; run it there with `just bench rpc`",
    )
    return subprocess.run([sys.executable, "-m", RPC_BENCH, *arguments], check=False).returncode
