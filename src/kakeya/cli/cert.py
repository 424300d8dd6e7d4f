"""`kakeya cert init` and `kakeya cert issue NAME`: certificates for a fleet's mutual TLS."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from kakeya.cli.flags import config_path
from kakeya.config.certificates import CertificateLimits
from kakeya.errors import Refused, demand
from kakeya.rpc.certificates import issue as issue_certificate
from kakeya.rpc.certificates import make_authority, read_authority

LIMITS = CertificateLimits()
CA = "ca"

cert_app = cyclopts.App(name="cert", help="Make the certificates of a fleet that uses TLS.")

Folder = Annotated[
    str | None,
    Parameter(help="Where certificates are kept. Default: kakeya/tls beside config.toml."),
]


@cert_app.command
def init(*, folder: Folder = None, name: str = "kakeya fleet CA") -> int:
    """Make the fleet's certificate authority, once, on one host; its key stays there.

    Parameters
    ----------
    name
        What the authority is called.
    """
    place = _folder(folder, os.environ)
    _demand_absent(place, CA)
    made = make_authority(name, now_unix=_now_unix(), limits=LIMITS)
    _keep(place, CA, certificate=made.certificate, key=made.key)
    print(f"made {place / 'ca.pem'} (to every host) and {place / 'ca.key'} (stays here, secret)")
    print("next: kakeya cert issue NAME --host ADDRESS, for each host")
    return 0


@cert_app.command
def issue(
    name: str,
    /,
    *,
    host: Annotated[
        tuple[str, ...], Parameter(help="DNS name or IP peers reach it at; repeatable.")
    ] = (),
    folder: Folder = None,
) -> int:
    """Make the certificate and key of one node, and print the flags that use them.

    Parameters
    ----------
    name
        The node's name: a DNS name. NAME, localhost, 127.0.0.1 and ::1 are always covered.
    """
    place = _folder(folder, os.environ)
    demand(name != CA, "INVALID_ARGUMENT", "NAME is 'ca', which is the authority's own")
    authority = read_authority(_read(place / "ca.pem"), _read(place / "ca.key"))
    made = issue_certificate(authority, name, host, now_unix=_now_unix(), limits=LIMITS)
    _demand_absent(place, name)
    _keep(place, name, certificate=made.certificate, key=made.key)
    files = {"cert": place / f"{name}.pem", "key": place / f"{name}.key", "ca": place / "ca.pem"}
    print(" ".join(f"--tls-{what} {shlex.quote(str(path))}" for what, path in files.items()))
    return 0


def _now_unix() -> float:
    return time.time()  # noqa: TID251 - the command is where the clock comes in


def _folder(given: str | None, env: Mapping[str, str]) -> Path:
    return Path(given).expanduser() if given else config_path(env).parent / "tls"


def _demand_absent(folder: Path, name: str) -> None:
    for path in (folder / f"{name}.pem", folder / f"{name}.key"):
        demand(
            not os.path.lexists(path),
            "ALREADY_EXISTS",
            f"{path} is there already; remove it, or choose another --folder",
        )


def _read(path: Path) -> bytes:
    """Raises Refused(FAILED_PRECONDITION) when the file cannot be read or is no key's size."""
    try:
        with path.open("rb") as file:
            raw = file.read(LIMITS.max_file_bytes + 1)
    except OSError as error:
        why = f"cannot read {path}: {error.strerror}; `kakeya cert init` makes a fleet's CA"
        raise Refused("FAILED_PRECONDITION", why) from None
    demand(
        len(raw) <= LIMITS.max_file_bytes,
        "FAILED_PRECONDITION",
        f"{path} is larger than {LIMITS.max_file_bytes} bytes",
    )
    return raw


def _keep(folder: Path, name: str, *, certificate: bytes, key: bytes) -> None:
    """Write both files, the key first; leaves neither when one cannot be written."""
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _demand_private(folder)
        for end, raw in (("key", key), ("pem", certificate)):
            path = folder / f"{name}.{end}"
            _write_new(path, raw, written)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        why = f"cannot write to {folder}: {error.strerror}"
        raise Refused("FAILED_PRECONDITION", why) from None


def _demand_private(folder: Path) -> None:
    demand(
        folder.stat().st_mode & 0o022 == 0,
        "FAILED_PRECONDITION",
        f"others may write in {folder}: chmod 700 it, or choose another --folder",
    )


def _write_new(path: Path, raw: bytes, written: list[Path]) -> None:
    """A file of ours alone, in one piece on the disk; never one that was there before."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    written.append(path)
    with os.fdopen(handle, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
