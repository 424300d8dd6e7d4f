"""Limits of what ships with, or is made for, this package."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EmbeddedLimits:
    # Free bytes a conversion leaves on the disk beside what it writes itself.
    spare_disk_bytes: int = 64 << 20
    # Bytes read at once while a source file is hashed.
    hash_chunk_bytes: int = 1 << 20
