"""Limits of a drafter's engine (host B); every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrafterLimits:
    # Rows one `extend` takes: a job of about 50 ms with the largest published drafters on two
    # cores.
    max_extend_len: int = 64
    # A context's room grows by a quarter of its length, and by at least this many positions.
    min_growth_len: int = 64
    # The weights together with the verifier's embedding and head: a refusal, not a swap.
    max_weight_bytes: int = 64 << 30
    # config.json and the shard index of a checkpoint; the largest published ones are below 1 MB.
    max_config_bytes: int = 8 << 20
    max_shards: int = 512
    # Threads of one tensor job; 0 means one per core this process may use.
    num_threads: int = 0
    # Weights of at most this size are multiplied by one thread: waking a second one costs more.
    one_thread_bytes: int = 32 << 20


__all__ = ["DrafterLimits"]
