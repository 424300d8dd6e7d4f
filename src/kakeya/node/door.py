"""The node's HTTP door: where it binds, who may ask, and what its routes answer from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from kakeya.config.settings import Settings
from kakeya.errors import Refused
from kakeya.http.access import Access
from kakeya.http.app import App
from kakeya.http.routes import Door, routes_of
from kakeya.http.server import HttpServer, open_http
from kakeya.node.parts import Parts
from kakeya.rpc.listener import Listen
from kakeya.rpc.security import is_loopback_host, read_key

LOOPBACK = "127.0.0.1"
KEY_VARIABLE = "KAKEYA_HTTP_KEY"


def read_http_key(settings: Settings, env: Mapping[str, str]) -> str:
    """The API key, "" without one.  Raises Refused."""
    return read_key(settings.http_key_file, env, variable=KEY_VARIABLE, what="the API key")


def http_bind(settings: Settings, *, has_key: bool) -> str:
    """The host to bind.  Raises Refused for a host named that is not safe.  Spec: H-02."""
    if settings.http_host:
        if is_loopback_host(settings.http_host) or has_key or settings.insecure:
            return settings.http_host
        raise Refused(
            "FAILED_PRECONDITION",
            f"http_host is {settings.http_host}, which others can reach: give clients an API key"
            " (--http-key-file), or trust the network with --insecure",
        )
    return settings.host if has_key or settings.insecure else LOOPBACK


async def open_door(settings: Settings, listen: Listen) -> HttpServer | None:
    """The bound listeners; None when the door is off.  Raises Refused."""
    if settings.http_port == "off":
        return None
    has_key = bool(read_http_key(settings, os.environ))
    host = http_bind(settings, has_key=has_key)
    return await open_http(host, settings.http_port, limits=settings.http, listen=listen)


def app_of(parts: Parts, host: str, is_serving: Callable[[], bool]) -> App:
    """The routes of a node that is bound to `host`."""
    settings, seams = parts.settings, parts.seams
    door = Door(
        generations=parts.generations,
        overview=parts.overview,
        metrics=parts.metrics,
        slot=parts.slot,
        limits=settings.http,
        wall=seams.wall,
        rng=seams.rng("http"),
        is_serving=is_serving,
        started_unix=seams.wall(),
    )
    access = Access(
        api_key=read_http_key(settings, os.environ),
        origins=settings.http_origin,
        is_local=is_loopback_host(host),
    )
    return App(routes_of(door), access, seams.rng("request ids"), settings.http.retry_after_s)
