"""One event a line on stderr or into a file: pretty on a terminal, JSON elsewhere.

No prompt text, no keys, no token ids above debug: callers keep to that; here is only the form.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from typing import Any, Literal

import structlog


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file that is moved to `path`.1, .2 … once it has max_bytes; num_old of those are kept."""

    path: str
    max_bytes: int
    num_old: int


def configure(
    level: str, log_format: Literal["auto", "pretty", "json"], file: LogFile | None = None
) -> None:
    """Send structlog and the standard library's loggers to `file`, or to stderr, in one form.

    Raises OSError when the file cannot be opened.
    """
    handler = _handler(file)
    is_terminal = file is None and sys.stderr.isatty()
    pretty = log_format == "pretty" or (log_format == "auto" and is_terminal)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer(
            colors=is_terminal,
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
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared], processors=last
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _handler(file: LogFile | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    return RotatingFileHandler(
        file.path, maxBytes=file.max_bytes, backupCount=file.num_old, encoding="utf-8"
    )
