"""The product's log lines as part of a trace: who said what, and when."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from tests.sim.trace import Trace
from tests.sim.violation import first_of

# The node on whose behalf the current task runs.
who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="-")
LEFT_OUT = ("exc_info", "event")
# What a simulated device or a rogue raises on purpose, and what callers are told of a mistake that
# was logged where it was made.
ON_PURPOSE = ("the device failed", "a proposer that fails", "internal error")


@contextmanager
def recorded(trace: Trace) -> Iterator[None]:
    """Send every log line inside the block to `trace` and nowhere else."""
    before = structlog.get_config()

    def record(_: Any, level: str, line: MutableMapping[str, Any]) -> Any:
        error = line.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        details = [f"{key}={line[key]}" for key in sorted(line) if key not in LEFT_OUT]
        if isinstance(error, BaseException):
            error = first_of(error)
            details.append(f"error={error!r}")
            if getattr(error, "why", str(error)) not in ON_PURPOSE:
                trace.mistakes.append(f"{who.get()}: {line['event']}: {error!r}")
        trace.note("log", who.get(), level, line["event"], *details)
        raise structlog.DropEvent

    structlog.configure(processors=[record], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
