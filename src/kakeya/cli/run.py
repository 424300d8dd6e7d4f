"""`kakeya run`: a node, until a signal ends it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import trio

from kakeya import logs
from kakeya.cli.client import read_credentials
from kakeya.cli.exit_codes import Exit
from kakeya.cli.flags import NodeFlags, load_settings, state_folder
from kakeya.config.settings import ConfigError, Settings
from kakeya.errors import Refused
from kakeya.node.backend import this_host
from kakeya.node.door import http_bind, read_http_key
from kakeya.node.preflight import demand_loadable
from kakeya.node.run import RunningNode, run_node
from kakeya.node.seams import host_seams
from kakeya.rpc.security import bind_trouble


def run(*, flags: NodeFlags | None = None) -> int:
    """Run a node: find the fleet, serve drafts, decode."""
    settings = load_settings(flags).settings
    key = read_credentials(settings)
    trouble = bind_trouble(
        settings.host,
        has_key=bool(key),
        has_tls=bool(settings.tls_cert),
        is_insecure=settings.insecure,
    )
    if trouble:
        raise ConfigError(trouble)
    _demand_safe_door(settings)
    demand_loadable(settings, os.environ, this_host())
    _configure_logs(settings)
    return int(trio.run(_serve, settings))


def _configure_logs(settings: Settings) -> None:
    file = None
    if settings.log_file:
        file = logs.LogFile(settings.log_file, settings.log_file_bytes, settings.log_old_files)
    try:
        logs.configure(settings.log_level, settings.log_format, file)
    except OSError as error:
        raise ConfigError(
            f"log_file is {settings.log_file!r}, it cannot be written: {error.strerror}"
        ) from None


def _demand_safe_door(settings: Settings) -> None:
    try:
        http_bind(settings, has_key=bool(read_http_key(settings, os.environ)))
    except Refused as refused:
        raise ConfigError(refused.why) from None


def ready_line(running: RunningNode) -> str:
    """What a script waits for; `-` stands for a door that is off.  Spec: N-05."""
    places = f"grpc={running.grpc_address} http={running.http_address or '-'}"
    return f"ready node_id={running.node_id} {places}"


async def _serve(settings: Settings) -> Exit:
    seams = host_seams(settings, state_folder(os.environ), os.environ)
    running: RunningNode | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            running = await nursery.start(run_node, settings, seams)
            print(ready_line(running), flush=True)
            nursery.start_soon(_watch, signals, running, nursery.cancel_scope)
            await running.ended()
            nursery.cancel_scope.cancel()
    # Read out here: a second signal cancels the wait above, and the status is the same.
    return Exit.INTERRUPTED if running and running.was_interrupted else Exit.OK


async def _watch(
    signals: AsyncIterator[int], running: RunningNode, everything: trio.CancelScope
) -> None:
    """The first signal drains, the second ends at once."""
    async for number in signals:
        if not running.stop(interrupted=number == signal.SIGINT):
            everything.cancel()
