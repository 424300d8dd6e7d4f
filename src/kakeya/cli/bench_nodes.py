"""Nodes of a benchmark's own: each a process, as on hosts of their own; they end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields

import trio

from kakeya.cli.bench_cores import Cores, hold
from kakeya.cli.delayed import DelayingDialer, relay
from kakeya.cli.flags import NodeFlags
from kakeya.config.settings import Settings
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import proposer_id
from kakeya.embedded.models import TINY
from kakeya.embedded.proposers import resolve_by_prefix
from kakeya.errors import Refused
from kakeya.rpc.channel import TcpDialer
from kakeya.rpc.listener import open_listeners

LOCAL = "127.0.0.1"
VERIFYING, DRAFTING = "bench-verifier", "bench-drafter"
# Python and a tensor library start within two seconds; a loaded host takes longer.
READY_S = 120.0
# Of the flags, what a node of a benchmark has for itself.
OWN = (
    "host", "port", "http_host", "http_port", "http_key_file", "http_origin", "advertise", "peer",
    "node_id", "fleet_interval", "verifier", "proposer", "log_level", "num_drafts", "draft_on",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A `kakeya run` that said it is ready."""

    node_id: str
    grpc_address: str
    pid: int


@dataclass(frozen=True, slots=True)
class NodePair:
    """One node verifies, the other drafts; the first holds the same drafters for comparison.

    proposers: the model_ids that both serve.
    """

    verifying: NodeProcess
    drafting: NodeProcess
    proposers: tuple[str, ...]


@asynccontextmanager
async def node_pair(
    flags: NodeFlags, settings: Settings, *, rtt_s: float, cores: Cores | None = None
) -> AsyncIterator[NodePair]:
    """Start both; the drafting one is `rtt_s` away.  Raises Refused for one that does not start.

    cores: where each is held; None: they run where they like.
    """
    here, there = (cores.verifying, cores.drafting) if cores else (None, None)
    proposers = [of_verifier(each, settings.verifier) for each in flags.proposer or (NGRAM,)]
    drafters = [f"--proposer={each}" for each in proposers]
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        await nursery.start(_end_when_told)
        home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        common = (*arguments_of(flags), "--log-level", flags.log_level or "error")
        first = ("--verifier", settings.verifier, *drafters, "--node-id", VERIFYING)
        verifying = await stack.enter_async_context(
            node_process((*common, *first), home, core=here)
        )
        away: tuple[str, ...] = ()
        if rtt_s:
            listeners = await open_listeners(LOCAL, 0)
            away = ("--advertise", f"{LOCAL}:{listeners[0].socket.getsockname()[1]}")
        second = ("--verifier", "none", *drafters, "--node-id", DRAFTING)
        peer = ("--peer", verifying.grpc_address)
        starting = node_process((*common, *second, *peer, *away), home, core=there)
        drafting = await stack.enter_async_context(starting)
        if rtt_s:
            dialer = DelayingDialer(TcpDialer(settings.rpc), rtt_s, nursery)
            nursery.start_soon(relay, listeners, dialer, drafting.grpc_address)
        yield NodePair(verifying, drafting, tuple(proposer_id(each) for each in proposers))
        nursery.cancel_scope.cancel()


async def _end_when_told(task_status: trio.TaskStatus[None]) -> None:
    """A command that is told to end takes its nodes with it."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            raise KeyboardInterrupt


def of_verifier(proposer: str, verifier: str) -> str:
    """The proposer as a node without a verifier takes it: a drafter's folder names its verifier."""
    is_whole = proposer in (NGRAM, TINY) or "@" in proposer
    return proposer if is_whole or resolve_by_prefix(proposer) else f"{proposer}@{verifier}"


def arguments_of(flags: NodeFlags) -> list[str]:
    """The flags a command was given as `kakeya run` takes them, but for those of OWN."""
    given = ["--host", LOCAL, "--port", "0", "--http-port", "off", "--fleet-interval", "1"]
    for each in fields(flags):
        value = getattr(flags, each.name)
        if each.name in OWN or value is None:
            continue
        name = "--" + each.name.strip("_").replace("_", "-")
        values = value if isinstance(value, tuple) else (value,)
        given += [name] if value is True else [f"{name}={one}" for one in values]
    return given


@asynccontextmanager
async def node_process(
    arguments: Sequence[str], home: str, *, core: int | None = None
) -> AsyncIterator[NodeProcess]:
    """`kakeya run ARGUMENTS`, its state under `home`, until the end of the block."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "kakeya", "run", *arguments],
        env=os.environ | {"XDG_STATE_HOME": home},
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        if core is not None:
            # Before it counts the cores that it may use.
            hold(process.pid, core)
        assert process.stdout is not None
        line = b""
        with trio.move_on_after(READY_S):
            while not line.endswith(b"\n") and (more := await process.stdout.receive_some()):
                line += more
        if not line.startswith(b"ready "):
            raise Refused("UNAVAILABLE", f"a node of the benchmark did not start: {arguments}")
        said = dict(part.split("=", 1) for part in line.decode().split()[1:])
        yield NodeProcess(said["node_id"], said["grpc"], process.pid)
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


__all__ = ["NodePair", "NodeProcess", "arguments_of", "node_pair", "node_process", "of_verifier"]
