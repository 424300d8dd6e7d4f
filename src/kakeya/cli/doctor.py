"""`kakeya doctor`: looks at this host, its models and its peers, and says what to do."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated

import msgspec
import trio
from cyclopts import Parameter

from kakeya.cli.client import answers, open_channels, read_credentials
from kakeya.cli.exit_codes import Exit
from kakeya.cli.findings import line_of
from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.settings import Settings
from kakeya.doctor.finding import Finding, is_well, skipped
from kakeya.doctor.host import host_findings, interfaces
from kakeya.doctor.look import look_at, whom_we_are
from kakeya.doctor.models import engine_findings, engines_of, model_findings
from kakeya.doctor.peers import Ours, Seen, peer_findings
from kakeya.doctor.places import address_findings, port_finding
from kakeya.doctor.rings import ring_finding
from kakeya.errors import Refused
from kakeya.fleet.address import parse
from kakeya.fleet.discovery import udp_route
from kakeya.node.door import http_bind
from kakeya.rpc.channel import Channels

LOCAL = "127.0.0.1"


def doctor(
    *,
    json: Annotated[bool, Parameter(negative="", help="Print JSON.")] = False,
    flags: NodeFlags | None = None,
) -> int:
    """Check host, models and peers with the settings a node would have; 1 when something fails."""
    settings = load_settings(flags).settings
    read_credentials(settings)
    findings: list[Finding] = []

    async def gather() -> None:
        async for finding in look_around(settings):
            findings.append(finding)
            if not json:
                print(line_of(finding), flush=True)

    trio.run(gather)
    if json:
        rows = [asdict(each) for each in findings]
        print(msgspec.json.encode({"ok": is_well(findings), "findings": rows}).decode())
    return Exit.OK if is_well(findings) else Exit.FAILURE


async def look_around(settings: Settings) -> AsyncIterator[Finding]:
    """All that is looked at, in order, each as soon as it is known."""
    for finding in host_findings(settings):
        yield finding
    async with open_channels(settings) as channels:
        ours = await _ours(settings, channels)
        for finding in await _place_findings(settings, is_running=bool(ours.node_id)):
            yield finding
        for address in settings.peer:
            seen = await _look(settings, channels, ours, address)
            for finding in peer_findings(seen, ours):
                yield finding
    if not settings.peer:
        yield skipped("peers", "no --peer is given")
    for finding in model_findings(settings):
        yield finding
    if settings.verifier != "none":
        for backend, dtype in engines_of(settings):
            for finding in await engine_findings(backend, dtype, settings):
                yield finding
    yield await ring_finding(os.environ)


async def _ours(settings: Settings, channels: Channels) -> Ours:
    """This host, and the node that runs on it, if one does."""
    ours = Ours(version("kakeya"), settings.fleet_name, "", "", settings.fleet.ttl_s)
    if settings.port and await answers(LOCAL, settings.port):
        return await whom_we_are(f"{LOCAL}:{settings.port}", channels, ours)
    return ours


async def _place_findings(settings: Settings, *, is_running: bool) -> list[Finding]:
    findings = [
        await port_finding(
            "gRPC port", settings.host, settings.port, flag="--port", is_ours=is_running
        )
    ]
    try:
        door = http_bind(settings, has_key=bool(settings.http_key_file))
    except Refused as refused:
        findings.append(skipped("HTTP port", refused.why))
    else:
        if settings.http_port != "off":
            port = int(settings.http_port)
            is_ours = is_running and port != 0 and await answers(LOCAL, port)
            findings.append(
                await port_finding("HTTP port", door, port, flag="--http-port", is_ours=is_ours)
            )
    routes = {}
    for peer in settings.peer:
        address = parse(peer)
        routes[peer] = await udp_route(address.host, address.port) if address else ""
    return findings + address_findings(
        host=settings.host,
        port=settings.port,
        advertise=settings.advertise,
        interfaces=interfaces(),
        routes=routes,
    )


async def _look(settings: Settings, channels: Channels, ours: Ours, address: str) -> Seen:
    has_tls = bool(settings.tls_cert)
    return await look_at(address, channels=channels, ours=ours, wall=time.time, has_tls=has_tls)  # noqa: TID251
