"""One event a line on stderr: pretty on a terminal, JSON elsewhere.

No prompt text, no keys, no token ids above debug: callers keep to that; here is only the form.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog


def configure(level: str, log_format: Literal["auto", "pretty", "json"]) -> None:
    """Send structlog and the standard library's loggers to stderr in one form."""
    pretty = log_format == "pretty" or (log_format == "auto" and sys.stderr.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The renderer's own choice prints every local variable: prompts and keys among them.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if pretty
        else structlog.processors.JSONRenderer(),
    ]
    if not pretty:
        last.insert(1, structlog.processors.format_exc_info)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared], processors=last
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
