"""One file from a server to the disk: goes on where an earlier try ended, and is checked.

The part that is there lies beside its place as `….incomplete`, until its hash was seen to be the
one that was announced.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2

from kakeya.config.hub import HubLimits
from kakeya.embedded.hub_files import RepoFile
from kakeya.errors import Refused, demand

# Told the bytes that are there, as they come.
Report = Callable[[RepoFile, int], None]
Pause = Callable[[float], None]


def fetch_file(
    client: httpx2.Client,
    url: str,
    file: RepoFile,
    place: Path,
    *,
    limits: HubLimits,
    report: Report,
    pause: Pause,
) -> None:
    """Leave the file at `place`, whole and checked.

    Raises Refused: UNAVAILABLE where the server cannot be reached or stops, NOT_FOUND,
    UNAUTHENTICATED, DATA_LOSS for another hash than announced.  What came is kept but then.
    """
    part, found = part_of(place), ""
    # A beginning may be of a disk that lost power: then once more, from the start.
    tries = 2 if part.is_file() and part.stat().st_size else 1
    for _ in range(tries):
        _complete(client, url, file, part, limits=limits, report=report, pause=pause)
        found = file_digest(part, len(file.hash), limits.chunk_bytes)
        if found == file.hash:
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.rename(place)
            return
        part.unlink()
    kind = "sha256" if len(file.hash) == 64 else "git hash"
    why = f"{file.name} has {kind} {found[:12]}…, the server announced {file.hash[:12]}…"
    raise Refused("DATA_LOSS", f"{why}: it was thrown away")


def part_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.incomplete")


def file_digest(path: Path, hash_len: int, chunk_bytes: int) -> str:
    """The sha256 of a file (hash_len 64), or the hash git has for it (40)."""
    digest: Any = hashlib.sha256()
    if hash_len == 40:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as opened:
        while chunk := opened.read(chunk_bytes):
            digest.update(chunk)
    return str(digest.hexdigest())


def _complete(
    client: httpx2.Client,
    url: str,
    file: RepoFile,
    part: Path,
    *,
    limits: HubLimits,
    report: Report,
    pause: Pause,
) -> None:
    """Bring the part to the announced size, over as many connections as it takes."""
    part.touch()
    if part.stat().st_size > file.num_bytes:
        part.write_bytes(b"")
    failures = 0
    while (at := part.stat().st_size) < file.num_bytes:
        report(file, at)
        why = _append(client, url, file, part, at, report=report)
        at_end = part.stat().st_size
        if at_end >= file.num_bytes:
            break
        failures = 0 if at_end > at else failures + 1
        demand(
            failures <= limits.max_retries,
            "UNAVAILABLE",
            f"{file.name} stopped at {at_end} of {file.num_bytes} bytes ({why}); "
            "the same command goes on from there",
        )
        pause(limits.retry_s * 2**failures)
    report(file, file.num_bytes)


def _append(
    client: httpx2.Client,
    url: str,
    file: RepoFile,
    part: Path,
    at: int,
    *,
    report: Report,
) -> str:
    """Add what one connection brings.  Returns why it may have ended early.  Raises Refused."""
    headers = {"Range": f"bytes={at}-"} if at else {}
    try:
        with client.stream("GET", url, headers=headers) as response:
            demand_given(response, file.name)
            if response.status_code not in (200, 206):
                if response.status_code == 416:  # what is here is not a beginning of it
                    part.write_bytes(b"")
                return f"the server answered {response.status_code}"
            _keep(response, file, part, at, report)
    except (httpx2.RequestError, httpx2.InvalidURL) as error:
        return str(error) or type(error).__name__
    return "the connection ended"


def _keep(
    response: httpx2.Response,
    file: RepoFile,
    part: Path,
    at: int,
    report: Report,
) -> None:
    # Who does not know ranges sends all of it again.
    goes_on = response.status_code == 206
    started = response.headers.get("Content-Range", "").startswith(f"bytes {at}-")
    demand(not goes_on or started, "UNAVAILABLE", f"another range of {file.name} came than asked")
    with part.open("ab" if goes_on else "wb") as opened:
        held = at if goes_on else 0
        # As it comes: what waited for a whole chunk would be lost with the connection.
        for chunk in response.iter_raw():
            demand(
                held + len(chunk) <= file.num_bytes,
                "DATA_LOSS",
                f"{file.name} is longer than the announced {file.num_bytes} bytes",
            )
            opened.write(chunk)
            held += len(chunk)
            report(file, held)


def demand_given(response: httpx2.Response, what: str) -> None:
    """Raise Refused for an answer that trying again would not change."""
    status = response.status_code
    demand(status != 404, "NOT_FOUND", f"{what} is not at {response.url.host}")
    demand(
        status not in (401, 403),
        "NOT_FOUND",
        f"{response.url.host} does not give {what} away ({status}): if it exists, it wants a token "
        "(HF_TOKEN) of somebody who may read it",
    )


__all__ = ["Pause", "Report", "demand_given", "fetch_file", "file_digest", "part_of"]
