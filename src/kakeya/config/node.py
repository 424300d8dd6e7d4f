"""Limits of the node itself and of its console; every name ends in its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeLimits:
    # A generation of 1,000 tokens at 15 tokens/s takes 70 s; nobody wants to wait that long for
    # a node to stop, so what is still running after this is cancelled.
    drain_s: float = 10.0
    # The whole card goes to three peers and the seeds side by side, 2 s each.
    leave_s: float = 3.0
    # A supervised child may fail this often within the period before the node gives up.
    max_restarts: int = 5
    restart_period_s: float = 300.0
    restart_backoff_s: float = 0.5
    max_restart_backoff_s: float = 30.0
    # Jobs that may wait for one engine's thread.
    max_waiting_jobs: int = 256
    # Generations served at once, and waiting behind them.
    max_generations: int = 8
    max_waiting_generations: int = 64
    # A first start converts the default model (about a minute), a slow disk takes longer.
    load_s: float = 900.0
    # How often the event loop's lag is measured.
    lag_every_s: float = 0.5
    max_prompt_bytes: int = 1 << 20
    # Prompts up to here are encoded on the event loop, in about 15 ms; longer ones on a thread.
    max_inline_bytes: int = 8 << 10
    # Ids of a prompt whose log probabilities are told: with 20 alternatives 3 KB each.
    max_scored_prompt_len: int = 4096
    max_stop_strings: int = 16
    max_stop_bytes: int = 1024


__all__ = ["NodeLimits"]
