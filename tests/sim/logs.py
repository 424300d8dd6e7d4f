"""The product's log lines as part of a trace: who said what, and when."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

from tests.sim.trace import Trace

# The node on whose behalf the current task runs.
who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="-")
# What a line says of time or place in this process, or of exceptions' own words.
LEFT_OUT = ("exc_info", "event")


@contextmanager
def recorded(trace: Trace) -> Iterator[None]:
    """Send every log line inside the block to `trace` and nowhere else."""
    before = structlog.get_config()

    def record(_: Any, level: str, line: MutableMapping[str, Any]) -> Any:
        error = line.get("exc_info")
        details = [f"{key}={line[key]}" for key in sorted(line) if key not in LEFT_OUT]
        if isinstance(error, BaseException):
            details.append(f"error={error!r}")
        trace.note("log", who.get(), level, line["event"], *details)
        raise structlog.DropEvent

    structlog.configure(processors=[record], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
