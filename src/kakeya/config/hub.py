"""Limits of a pull from the Hugging Face Hub; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubLimits:
    # A connection without a byte for so long is given up, and opened again.
    timeout_s: float = 30.0
    # Tries in a row that bring no byte; the wait before each doubles, from retry_s.
    max_retries: int = 5
    retry_s: float = 1.0
    # The list of a repository's files; the largest repositories have some hundred.
    max_list_bytes: int = 16 << 20
    max_files: int = 1024
    # Bytes read at once while a file is hashed.
    chunk_bytes: int = 1 << 20
    # Free bytes that are left on the disk.
    spare_disk_bytes: int = 64 << 20


__all__ = ["HubLimits"]
