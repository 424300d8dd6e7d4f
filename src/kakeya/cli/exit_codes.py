"""What the exit status of every kakeya command means.  Spec: specs/node.md."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69  # a peer or a model is missing (EX_UNAVAILABLE)
    CONFIG = 78  # EX_CONFIG
    INTERRUPTED = 130  # SIGINT


# How a refused call ends a command.
BY_STATUS = {
    "INVALID_ARGUMENT": Exit.USAGE,
    "NOT_FOUND": Exit.UNAVAILABLE,
    "UNAVAILABLE": Exit.UNAVAILABLE,
    "DEADLINE_EXCEEDED": Exit.UNAVAILABLE,
}


def exit_for(status: str) -> Exit:
    return BY_STATUS.get(status, Exit.FAILURE)
