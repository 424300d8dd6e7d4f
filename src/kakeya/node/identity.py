"""What this node says of itself: platform, memory, MLX, and what its calls carry."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil

from kakeya.config.settings import Settings
from kakeya.fleet.service import fleet_metadata
from kakeya.rpc.security import TlsFiles, key_metadata, read_fleet_key


def platform_label() -> str:
    """Such as "linux-x86_64" or "mac-arm64"; informational."""
    system = {"darwin": "mac"}.get(sys.platform, sys.platform)
    return f"{system}-{platform.machine()}"


def memory_bytes() -> int:
    return int(psutil.virtual_memory().total)


def mlx_version() -> str:
    """The installed mlx, or "" without one."""
    try:
        return version("mlx")
    except PackageNotFoundError:
        return ""


def tls_files(settings: Settings) -> TlsFiles | None:
    """The certificate that this node, or a command to it, shows; None: it speaks plainly."""
    if not settings.tls_cert:
        return None
    return TlsFiles(settings.tls_cert, settings.tls_key, settings.tls_ca)


def call_metadata(settings: Settings, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What every call of this node, or of a command to it, carries."""
    key = read_fleet_key(settings.fleet_key_file, env)
    return (*fleet_metadata(settings.fleet_name), *key_metadata(key))
