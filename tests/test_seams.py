"""Clock, chance, network, threads and processes enter the product at named places only.

Everything else takes them as arguments: that is what makes a whole fleet run on a mock clock from
one seed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_tidy import SOURCES, SRC

# Modules that are the world itself.
MODULES = {
    "asyncio", "concurrent.futures", "multiprocessing", "random", "secrets", "select", "selectors",
    "socket", "subprocess", "threading", "time", "uuid", "_thread",
}  # fmt: skip
# Names of other modules that reach for the world.
NAMES = {
    "os.urandom", "os.fork", "os.system", "datetime.now", "datetime.utcnow", "datetime.today",
    "trio.socket", "trio.to_thread", "trio.from_thread", "trio.open_tcp_stream",
    "trio.open_tcp_listeners", "trio.serve_tcp", "trio.run_process", "trio.open_signal_receiver",
    "numpy.random", "np.random",
}  # fmt: skip
# Of a banned module: what is harmless, because it is seeded by whoever makes it.
HARMLESS = {"random.Random", "np.random.Philox", "np.random.Generator", "np.random.default_rng"}

# Where the world comes in.  An entry that is not needed any more fails the test.
SEAMS = {
    "node/seams.py": {"time.time", "os.urandom"},
    "compute/device.py": {"trio.to_thread", "time.perf_counter"},  # how long its own thread works
    "fleet/discovery.py": {"trio.socket"},
    "fleet/store.py": {"trio.to_thread"},
    "rpc/dialing.py": {"socket", "trio.socket", "trio.open_tcp_stream"},
    "rpc/listener.py": {"socket", "trio.socket"},
    "rpc/pump.py": {"socket"},  # only asks a stream whether it is one
    "console/generations.py": {"trio.to_thread"},  # a text's words, never its ids
    # Training is no part of a node, nor are commands.
    "training/chat_drafter_torch.py": {"time.monotonic"},
    "training/dlm_torch.py": {"time.monotonic"},
    "training/drafter_torch.py": {"time.monotonic"},
    "training/verifier_torch.py": {"time.monotonic"},
    "cli/client.py": {"os.urandom", "trio.open_tcp_stream"},
    "cli/run.py": {"trio.open_signal_receiver"},
    "cli/cert.py": {"time.time"},
    "cli/bench.py": {"subprocess"},
    "cli/bench_nodes.py": {"subprocess", "trio.open_signal_receiver"},
    "cli/doctor.py": {"time.time"},
    "cli/models_pull.py": {"time.sleep"},  # before a connection is tried again
    # A rank of a ring never lives in the node: it may hold the interpreter, or wait for ever.
    "ring/probe.py": {"subprocess", "trio.run_process"},
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def reaches(tree: ast.AST) -> Iterator[str]:
    """What of the world outside a module's code names; annotations do not count."""
    harmless: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            taken = {f"{node.module}.{alias.name}" for alias in node.names}
            if not taken <= HARMLESS:
                yield node.module
        if isinstance(node, ast.Import):
            whole = [alias.name for alias in node.names]
            yield from (name for name in whole if name in MODULES - {"random", "time"})
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            parts = name.split(".")
            two = ".".join(parts[:2])
            if node in harmless or name in HARMLESS:
                harmless.add(node.value)
                continue
            if parts[0] in ("random", "time"):
                yield two
            if two in NAMES:
                yield two


def without_annotations(tree: ast.AST) -> ast.AST:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)  # type: ignore[assignment]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return tree


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(SRC)))
def test_the_world_outside_comes_in_at_the_seams_only(path: Path):
    found = set(reaches(without_annotations(ast.parse(path.read_text()))))
    assert found == SEAMS.get(str(path.relative_to(SRC)), set())


def test_every_seam_is_a_file_of_the_package():
    assert {str(path.relative_to(SRC)) for path in SOURCES} >= set(SEAMS)


@pytest.mark.parametrize(
    ("code", "reached"),
    [
        ("import time\ntime.monotonic()", {"time.monotonic"}),
        ("import random\nrng = random.Random(3)", set()),
        ("import random\nrandom.shuffle(x)", {"random.shuffle"}),
        ("from uuid import uuid4", {"uuid"}),
        ("from random import Random", set()),
        ("from random import Random, choice", {"random"}),
        ("from datetime import datetime\ndatetime.now()", {"datetime.now"}),
        ("import threading", {"threading"}),
        ("import trio\ntrio.to_thread.run_sync(f)", {"trio.to_thread"}),
        ("import trio\ndef f(s: trio.socket.SocketType): ...", set()),
        ("import numpy as np\nnp.random.rand(3)", {"np.random"}),
    ],
)
def test_what_counts_as_reaching_out(code, reached):
    assert set(reaches(without_annotations(ast.parse(code)))) == reached
