"""Runs a node inside nested nurseries, and takes it down in the order they nest.

services           device threads, channels, gossip, the model's loading: outlive the rest
└─ owners          of DFlash sessions, which outlive the connections they are asked through
   └─ connections  the gRPC and HTTP servers with their handlers; get a deadline at drain
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
import trio

from kakeya.config.settings import Settings
from kakeya.drafting.drafter import DflashDrafter
from kakeya.fleet.store import Store
from kakeya.http.server import HttpServer
from kakeya.node.chores import load_proposers, load_verifier, measure_drafting
from kakeya.node.door import app_of, open_door
from kakeya.node.gauges import measure_lag, pulled
from kakeya.node.identity import tls_files
from kakeya.node.parts import Parts, build_parts
from kakeya.node.phase import Event, Phase, after
from kakeya.node.seams import Seams
from kakeya.rpc.listener import Server
from kakeya.rpc.security import listening_tls
from kakeya.supervision import RestartPolicy, supervise

log = structlog.get_logger(__name__)


@dataclass(eq=False, slots=True)
class RunningNode:
    """A node that listens: its names, what it is made of, and the handle to end it."""

    node_id: str
    grpc_address: str
    parts: Parts
    http_address: str = ""
    phase: Phase = Phase.STARTING
    was_interrupted: bool = False
    _stop_asked: trio.Event = field(default_factory=trio.Event)
    _ended: trio.Event = field(default_factory=trio.Event)

    def stop(self, *, interrupted: bool) -> bool:
        """Ask it to drain; False when it was asked before: the caller ends it at once."""
        if self._stop_asked.is_set():
            return False
        self.was_interrupted = interrupted
        self._stop_asked.set()
        return True

    async def stop_asked(self) -> None:
        await self._stop_asked.wait()

    async def ended(self) -> None:
        await self._ended.wait()

    def move(self, event: Event) -> None:
        self.phase = after(self.phase, event)
        log.debug("phase", phase=self.phase.value)
        if self.phase is Phase.STOPPED:
            self._ended.set()


async def run_node(
    settings: Settings,
    seams: Seams,
    drafters: Sequence[DflashDrafter] = (),
    *,
    task_status: trio.TaskStatus[RunningNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until it is told to stop and has drained, or is cancelled.

    Reports a RunningNode once it listens.  Raises Refused for what keeps it from starting.
    """
    parts = build_parts(settings, seams, drafters)
    parts.metrics.pull_from(partial(pulled, parts))
    tls = listening_tls(tls_files(settings))
    listeners = await seams.listen(settings.host, settings.port)
    server = Server(settings.host, listeners, limits=settings.rpc, tls=tls)
    door = await _door_beside(server, settings, seams)
    running = RunningNode(parts.fleet.node_id, server.address, parts, door.address if door else "")
    await _keep_name(seams.store, parts.fleet.node_id)
    async with trio.open_nursery() as services:
        for device in (
            parts.drafting_device,
            parts.proposing_device,
            parts.verifying_device,
            parts.dflash.device,
        ):
            await services.start(device.serve)
        await services.start(parts.channels.serve)
        await services.start(parts.catalog.serve)
        await services.start(parts.keeper.serve)
        parts.fleet.listens_on(server.host, server.port)
        services.start_soon(supervise, "gossip", parts.fleet.run, _restarts(settings))
        services.start_soon(load_verifier, parts)
        services.start_soon(load_proposers, parts)
        lag = partial(measure_lag, parts.metrics, settings.node.lag_every_s)
        services.start_soon(supervise, "loop lag", lag, _restarts(settings))
        services.start_soon(measure_drafting, parts)
        async with trio.open_nursery() as owners:
            await owners.start(parts.dflash.sessions.run)
            await _serve(parts, server, door, running, task_status)
            owners.cancel_scope.cancel()
        running.move(Event.DRAINED)
        services.cancel_scope.cancel()


async def _serve(
    parts: Parts,
    server: Server,
    door: HttpServer | None,
    running: RunningNode,
    task_status: trio.TaskStatus[RunningNode],
) -> None:
    """Serve connections until the node is asked to stop and has drained."""
    async with trio.open_nursery() as connections:
        await connections.start(server.serve, parts.endpoint)
        if door is not None:
            app = app_of(parts, door.host, lambda: running.phase is Phase.SERVING)
            await connections.start(door.serve, app.handle)
        running.move(Event.LISTENING)
        parts.health.set_all(is_serving=True)
        task_status.started(running)
        await running.stop_asked()
        running.move(Event.STOP_ASKED)
        await _drain(parts, server, door)
        connections.cancel_scope.cancel()


async def _keep_name(store: Store, node_id: str) -> None:
    """Save the name before anybody hears it: a node killed at once is itself again."""
    saved = store.load()
    if saved.node_id == node_id:
        return
    try:
        await store.save(replace(saved, node_id=node_id, last_stamp_unix=float("-inf")))
    except OSError as error:
        log.warning("this node's name cannot be kept", why=error.strerror)


async def _door_beside(server: Server, settings: Settings, seams: Seams) -> HttpServer | None:
    """The HTTP door; without one the gRPC listeners are not left behind."""
    try:
        return await open_door(settings, seams.listen)
    except BaseException:
        await server.close()
        raise


async def _drain(parts: Parts, server: Server, door: HttpServer | None) -> None:
    """Stop admitting, say goodbye, let what runs end within its limit."""
    limits = parts.settings.node
    parts.health.set_all(is_serving=False)
    parts.admission.close()
    parts.dflash.sessions.stop_admitting()
    parts.drafting.stop_admitting()
    with trio.move_on_after(limits.leave_s):
        await parts.fleet.leave()
    with trio.move_on_after(limits.drain_s):
        async with trio.open_nursery() as drains:
            drains.start_soon(server.drain)
            if door is not None:
                drains.start_soon(door.drain)


def _restarts(settings: Settings) -> RestartPolicy:
    limits = settings.node
    return RestartPolicy(
        max_restarts=limits.max_restarts,
        period_s=limits.restart_period_s,
        backoff_s=limits.restart_backoff_s,
        max_backoff_s=limits.max_restart_backoff_s,
    )
