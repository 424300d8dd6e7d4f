"""Processes held on cores of their own, so that one machine stands for two.  Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cores:
    """verifying: the core of the verifier alone.  drafting: the drafter's and the command's."""

    verifying: int
    drafting: int


def two_cores() -> Cores | None:
    """The first two this process may use; None where there are none, or none to hold on to."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[1]) if len(usable) > 1 else None


def hold(pid: int, core: int) -> None:
    """Move every thread of a process to `core`; those it starts later follow.

    Raises ProcessLookupError when it has ended.
    """
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), {core})
        except ProcessLookupError:
            continue  # a thread ends when it likes


@contextmanager
def held_here(cores: Cores | None) -> Iterator[None]:
    """Hold this process on the drafter's core; nothing where there are no cores."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores.drafting})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


__all__ = ["Cores", "held_here", "hold", "two_cores"]
