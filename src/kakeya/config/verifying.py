"""Limits of the verifier's engine; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VerifyingLimits:
    # Tokens of one prefill job: about 50 ms of the default model on two cores, so that other
    # generations' steps get in between.  A constant, never measured: the same prompt must be cut
    # the same way in every process, or near ties could fall differently.
    max_prefill_chunk_len: int = 64
    # Rows of one verify pass: the bonus and at most 64 drafts.  Also the slack a window's K/V
    # keeps, so that a whole block can be forgotten.
    max_block_len: int = 65
    # K/V of all generations together, and the weights: beyond them is a refusal, not a swap.
    max_kv_bytes: int = 4 << 30
    max_weight_bytes: int = 64 << 30
    # config.json and the shard index of a checkpoint; the largest published ones are below 1 MB.
    max_config_bytes: int = 8 << 20
    max_shards: int = 512
    # Threads of one tensor job; 0 means one per core this process may use.
    num_threads: int = 0
    # Weights of at most this size are multiplied by one thread: waking a second one costs more.
    one_thread_bytes: int = 32 << 20
