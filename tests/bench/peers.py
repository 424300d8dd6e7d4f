"""Good and bad peers of one verifier, each a process, for `never_slower`."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kakeya.cli.delayed import DelayingDialer, relay
from kakeya.config.rpc import RpcLimits
from kakeya.embedded.models import TINY_FOLDER
from kakeya.rpc.dialing import TcpDialer
from kakeya.rpc.listener import open_listeners
from tests.cli.nodes import PATIENCE_S, running_node

# Leaving what it gives kills the peer.
Start = Callable[[], AbstractContextManager[object]]
LATE_MS = 200
# A drafter loads for some seconds before it is of any use.
DIES_EVERY_S, DRAFTER_DIES_EVERY_S = 2.0, 6.0


@dataclass(frozen=True)
class Peer:
    """One peer that drafts.  proposer: its model_id.

    dies_every_s: so long after it is ready it is killed, and started again; 0: never.
    """

    name: str
    proposer: str
    start: Start
    dies_every_s: float = 0.0


def peers_of(home: Path, verifier: str) -> list[Peer]:
    """Two good ones, and everything that may be wrong with one."""

    def fake(node_id: str, how: str, *more: str) -> Start:
        # A port of its own, so that it is itself again after a kill.
        port = str(free_port())
        args = ("--how", how, "--node-id", node_id, "--peer", verifier, "--port", port, *more)
        return lambda: fake_peer(*args)

    def drafter(
        node_id: str, model: str, *more: str
    ) -> Callable[[], AbstractContextManager[object]]:
        args = ("--verifier", "none", "--proposer", model, "--node-id", node_id, "--peer", verifier)
        quick = ("--http-port", "off", "--fleet-interval", "1", "--log-level", "error")
        port = ("--port", str(free_port()))
        return lambda: running_node(home, *args, *quick, *port)

    noise = write_noise(home / "noise")
    return [
        Peer("drafter", "tiny", drafter("drafter", "tiny")),
        Peer("copying", "copying", fake("copying", "copy")),
        Peer("wrong", "wrong", fake("wrong", "wrong")),
        Peer("noise", "noise", drafter("noise", f"{noise}@tiny")),
        Peer("late", "late", fake("late", "copy", "--late-ms", str(LATE_MS))),
        Peer("far", "tiny", lambda: far_drafter(home, verifier)),
        Peer("dying", "dying", fake("dying", "copy"), DIES_EVERY_S),
        Peer("dying-drafter", "tiny", drafter("dying-drafter", "tiny"), DRAFTER_DIES_EVERY_S),
    ]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def fake_peer(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bad_proposer", *args], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


def write_noise(folder: Path, *, seed: int = 1) -> Path:
    """The tiny drafter with its weights shuffled: it fits, and nothing it drafts is right."""
    source, rng = TINY_FOLDER / "drafter", np.random.default_rng(seed)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text((source / "config.json").read_text())
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim > 1:
            shuffled = rng.permutation(weight.numel())
            weights[name] = weight.flatten()[shuffled].reshape(weight.shape).contiguous()
    with safe_open(source / "model.safetensors", "pt") as file:
        save_file(weights, folder / "model.safetensors", metadata=file.metadata())
    return folder


@contextmanager
def far_drafter(home: Path, verifier: str) -> Iterator[None]:
    """A drafter that every byte takes half of LATE_MS to."""
    with ExitStack() as stack:
        far = stack.enter_context(relayed(LATE_MS / 1e3))
        args = ("--verifier", "none", "--proposer", "tiny", "--node-id", "far", "--peer", verifier)
        quick = ("--http-port", "off", "--fleet-interval", "1", "--log-level", "error")
        away = ("--advertise", f"127.0.0.1:{far.port}")
        node = stack.enter_context(running_node(home, *args, *quick, *away))
        far.address = node.grpc
        far.is_there.set()
        yield


class Relayed(threading.Thread):
    """A port whose traffic goes to `address`, later; in a thread with a loop of its own."""

    def __init__(self, rtt_s: float) -> None:
        super().__init__(daemon=True)
        self.rtt_s, self.port, self.address = rtt_s, 0, ""
        self.listens, self.is_there = threading.Event(), threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()

    def run(self) -> None:
        trio.run(self._serve)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            listeners = await open_listeners("127.0.0.1", 0)
            self.port = listeners[0].socket.getsockname()[1]
            self.listens.set()
            await trio.to_thread.run_sync(self.is_there.wait, abandon_on_cancel=True)
            async with trio.open_nursery() as nursery:
                dialer = DelayingDialer(TcpDialer(RpcLimits()), self.rtt_s, nursery)
                await relay(listeners, dialer, self.address)

    def end(self) -> None:
        assert self._token is not None
        self.is_there.set()
        self._token.run_sync_soon(self._scope.cancel)
        self.join(PATIENCE_S)


@contextmanager
def relayed(rtt_s: float) -> Iterator[Relayed]:
    thread = Relayed(rtt_s)
    thread.start()
    assert thread.listens.wait(PATIENCE_S)
    try:
        yield thread
    finally:
        thread.end()


class Dying(threading.Thread):
    """Starts a peer, kills it with kill -9 a while after it is ready, and so on until `end`."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(daemon=True)
        self._peer = peer
        self._over = threading.Event()
        self.num_deaths = 0

    def run(self) -> None:
        while not self._over.is_set():
            with self._peer.start():  # leaving kills it
                self._over.wait(self._peer.dies_every_s)
            self.num_deaths += 1

    def end(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)


@contextmanager
def present(peer: Peer) -> Iterator[None]:
    """The peer, alive or dying, until the end of the block."""
    if not peer.dies_every_s:
        with peer.start():
            yield
        return
    dying = Dying(peer)
    dying.start()
    try:
        yield
    finally:
        dying.end()
