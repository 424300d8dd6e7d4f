"""Which folder a node keeps its identity in, when several nodes share one host.

A node with a given name has a folder of that name; the others take the first folder that no
running node holds, so a node that was killed and started again is itself again.  Held by an
advisory lock, which the operating system drops with the process.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kakeya.errors import Refused

MAX_NODES_A_HOST = 64


@dataclass(frozen=True, slots=True)
class Claim:
    """A folder that is ours until `release`."""

    folder: Path
    lock_fd: int

    def release(self) -> None:
        os.close(self.lock_fd)


def claim_state(base: Path, node_id: str) -> Claim | None:
    """Claim the folder of `node_id`, or the first free numbered one when it is empty.

    None: a running node on this host already holds the folder of that name.  Raises
    Refused(FAILED_PRECONDITION) when the state cannot be written, or for more than
    MAX_NODES_A_HOST unnamed nodes.
    """
    names = [_folder_name(node_id)] if node_id else [f"node-{n}" for n in _numbers()]
    for name in names:
        claim = _try_claim(base / name)
        if claim is not None:
            return claim
    if node_id:
        return None
    raise Refused("FAILED_PRECONDITION", f"{MAX_NODES_A_HOST} nodes run on this host already")


def _numbers() -> range:
    return range(1, MAX_NODES_A_HOST + 1)


def _folder_name(node_id: str) -> str:
    # A name may hold any character; a folder's name may not.
    return "named-" + re.sub(r"[^A-Za-z0-9._-]", lambda m: f"%{ord(m.group()):x}", node_id)


def _try_claim(folder: Path) -> Claim | None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(
            "FAILED_PRECONDITION",
            f"the state folder cannot be written: {error.strerror} (set XDG_STATE_HOME)",
        ) from None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_fd)
        return None
    return Claim(folder, lock_fd)
