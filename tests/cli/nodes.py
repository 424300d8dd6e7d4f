"""Real nodes in processes of their own, for tests that need sockets, signals and kill -9."""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import structlog

from kakeya.cli.app import status_of

KAKEYA = [sys.executable, "-m", "kakeya"]
# A loaded machine starts Python slowly; nothing here measures time.
PATIENCE_S = 60.0


def environment(home: Path, around: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A clean environment: state and configuration under `home`, the model cache as it is."""
    kept = {k: v for k, v in around.items() if not k.startswith("KAKEYA_")}
    return kept | {
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "NO_COLOR": "1",
    }


def run_kakeya(
    *args: str, home: Path, stdin: str | None = None, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAKEYA, *args],
        env=environment(home),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_here(*args: str, home: Path) -> subprocess.CompletedProcess[str]:
    """As run_kakeya, in this process: a second sooner, and all but the process the same."""
    out, err = io.StringIO(), io.StringIO()
    root, env = logging.getLogger(), dict(os.environ)
    handlers, level = list(root.handlers), root.level
    os.environ.clear()
    os.environ.update(environment(home, env))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status = status_of(list(args))
    finally:
        os.environ.clear()
        os.environ.update(env)
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
    return subprocess.CompletedProcess([*KAKEYA, *args], status, out.getvalue(), err.getvalue())


@dataclass
class NodeProcess:
    """A `kakeya run` that said it is ready."""

    process: subprocess.Popen[str]
    node_id: str
    grpc: str
    http: str
    reader: threading.Thread
    errors: list[str] = field(default_factory=list)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(PATIENCE_S)


@contextmanager
def running_node(home: Path, *args: str) -> Iterator[NodeProcess]:
    """Start `kakeya run ARGS`, on any ports where they name none; stop it however this ends."""
    ports = [each for flag in ("--port", "--http-port") if flag not in args for each in (flag, "0")]
    process = subprocess.Popen(
        [*KAKEYA, "run", *ports, *args],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    errors: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reader = threading.Thread(target=_keep, args=(process.stderr, errors), daemon=True)
    reader.start()
    try:
        ready = _first_line(process.stdout)
        assert ready.startswith("ready "), (ready, errors)
        said = dict(part.split("=", 1) for part in ready.split()[1:])
        yield NodeProcess(process, said["node_id"], said["grpc"], said["http"], reader, errors)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)


def fleet_view(node: NodeProcess, home: Path) -> dict[str, dict[str, object]]:
    """`kakeya fleet --json` at `node`: rows by node_id."""
    done = run_here("fleet", "--json", "--node", node.grpc, home=home)
    assert done.returncode == 0, done.stderr
    return {row["node_id"]: row for row in json.loads(done.stdout)["nodes"]}


def eventually(holds, *, within_s: float = PATIENCE_S):
    """The first true answer of `holds()`; fails when none comes within `within_s`."""
    over = time.monotonic() + within_s
    while not (answer := holds()):
        assert time.monotonic() < over, "it did not come true in time"
        time.sleep(0.1)
    return answer


def _keep(stream: IO[str], lines: list[str]) -> None:
    lines.extend(iter(stream.readline, ""))


def _first_line(stream: IO[str]) -> str:
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    return lines.get(timeout=PATIENCE_S).strip()
