"""`kakeya service-file systemd|launchd`: the text that lets a host start its node by itself."""

from __future__ import annotations

import plistlib
import shlex
import sys
from typing import Annotated

from cyclopts import Parameter

from kakeya.errors import demand

KINDS = ("systemd", "launchd")
LABEL = "kakeya"
# Longer than node.drain_s and node.leave_s together: a node that drains is not killed for it.
STOP_S = 30


def service_file(
    kind: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
) -> int:
    """Print a service file for `kakeya run` with the arguments behind `--`.

    Parameters
    ----------
    kind
        systemd (to ~/.config/systemd/user/kakeya.service) or launchd
        (to ~/Library/LaunchAgents/kakeya.plist).
    arguments
        What `kakeya run` is given.
    """
    demand(
        kind in KINDS,
        "INVALID_ARGUMENT",
        f"no kind of service {kind!r}; there are {', '.join(KINDS)}",
    )
    command = [sys.executable, "-m", "kakeya", "run", *arguments]
    print(systemd(command) if kind == "systemd" else launchd(command), end="")
    return 0


def systemd(command: list[str]) -> str:
    """A user unit; a node that drains on SIGTERM ends with 0 and is not started again."""
    return f"""\
[Unit]
Description=Kakeya node
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={" ".join(map(_systemd_word, command))}
Restart=on-failure
RestartSec=5
TimeoutStopSec={STOP_S}

[Install]
WantedBy=default.target
"""


def _systemd_word(word: str) -> str:
    """Quoted where it must be; % and $ mean something to systemd and are doubled."""
    escaped = word.replace("%", "%%").replace("$", "$$")
    if escaped and escaped == shlex.quote(escaped).strip("'") and not set(escaped) & set(" \t'\""):
        return escaped
    inner = escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{inner}"'


def launchd(command: list[str]) -> str:
    """A launch agent; it is started again unless it ended with 0."""
    text = plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": command,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ExitTimeOut": STOP_S,
            "ProcessType": "Interactive",
        }
    )
    return text.decode()


__all__ = ["launchd", "service_file", "systemd"]
