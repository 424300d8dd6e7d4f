"""The progress of a long start, on stderr: a bar on a terminal, a line now and then elsewhere.

Called from the engine's thread.
"""

from __future__ import annotations

import sys

import structlog
from rich.console import Console
from rich.progress import Progress

log = structlog.get_logger(__name__)


class ProgressLog:
    """Takes (what is being done, share done 0 … 1)."""

    def __init__(self) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._on_terminal = sys.stderr.isatty()
        self._task = self._bar.add_task("", total=1.0) if self._on_terminal else None
        self._logged = -1.0
        self._doing = ""

    def __call__(self, doing: str, share: float) -> None:
        if self._task is not None:
            self._bar.start()
            self._bar.update(self._task, completed=share, description=doing)
            if share >= 1:
                self._bar.stop()
        elif doing != self._doing or share - self._logged >= 0.25:
            self._logged, self._doing = share, doing
            log.info("loading", doing=doing, percent=round(100 * share))
