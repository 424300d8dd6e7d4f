"""Limits of serving drafts (host B); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    max_num_drafts: int = 64
    # Diffusion drafters iterate some tens of times; more is a mistake or an attack.
    max_num_steps: int = 1024
    # Twice the longest context of the models this is meant for (128k).
    max_prefix_len: int = 1 << 18
    # Suffix indexes kept for prefixes that go on growing, least recently used out first.
    max_indexes: int = 32
    max_index_bytes: int = 256 << 20
    # Tokens indexed in one job: about 20 ms on the slowest core measured.
    index_piece_len: int = 16_384
    # K/V of prefixes a model drafts for, kept between calls; as many calls draft at once.  The
    # room of one doubles from the least, so that a growing text is read anew a few times only.
    max_caches: int = 8
    max_cache_bytes: int = 1 << 30
    min_cache_len: int = 1024
    # Calls that wait for one of them, a model.
    max_waiting_calls: int = 32


__all__ = ["DraftingLimits"]
