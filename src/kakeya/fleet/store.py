"""What a node keeps across restarts: its id, its last stamp, and where peers were.

Knows neither cards nor gossip.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
import trio

from kakeya.fleet.peers import Remembered

log = structlog.get_logger(__name__)

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a store; the defaults are those of a node that never ran."""

    node_id: str = ""
    last_stamp_unix: float = float("-inf")
    addresses: tuple[Remembered, ...] = ()


class Store(Protocol):
    """Keeps one Saved.  `load` is for the start; a failing `save` raises OSError."""

    def load(self) -> Saved: ...

    async def save(self, saved: Saved) -> None: ...


class MemoryStore:
    """A store that lasts as long as the object: survives a simulated crash."""

    def __init__(self, saved: Saved | None = None) -> None:
        self.saved = saved or Saved()

    def load(self) -> Saved:
        return self.saved

    async def save(self, saved: Saved) -> None:
        self.saved = saved
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True)
class _OnDisk:
    node_id: str = ""
    last_stamp_unix: float | None = None
    addresses: Sequence[Remembered] = ()


class FileStore:
    """A JSON file only its owner can read, replaced in one step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Saved:
        """What the file holds; Saved() when there is none or it is damaged, which is logged."""
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise msgspec.ValidationError(f"larger than {MAX_FILE_BYTES} bytes")
            disk = msgspec.json.decode(self._path.read_bytes(), type=_OnDisk)
        except FileNotFoundError:
            return Saved()
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            log.warning("the saved state is damaged, it starts anew", why=str(error))
            return Saved()
        stamp = float("-inf") if disk.last_stamp_unix is None else disk.last_stamp_unix
        return Saved(disk.node_id, stamp, tuple(disk.addresses))

    async def save(self, saved: Saved) -> None:
        has_stamp = saved.last_stamp_unix > float("-inf")
        stamp = saved.last_stamp_unix if has_stamp else None
        content = msgspec.json.encode(_OnDisk(saved.node_id, stamp, saved.addresses))
        # A write of a few KiB; not abandoned when cancelled, or the file would be half-made.
        await trio.to_thread.run_sync(self._replace, content)

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)


def usable(saved: Saved, *, now_unix: float, remember_s: float, max_addresses: int) -> Saved:
    """`saved` without addresses that are too old or too many.  Spec: F-06."""
    fresh = [a for a in saved.addresses if abs(now_unix - a.seen_at_unix) <= remember_s]
    fresh.sort(key=lambda known: known.seen_at_unix)
    return replace(saved, addresses=tuple(fresh[-max_addresses:]))
