"""Keeps long-lived tasks: one that is restarted with back-off, or many that others start.

Knows nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """At most `max_restarts` within `period_s`; waits back-off, doubled per failure up to a cap."""

    max_restarts: int
    period_s: float
    backoff_s: float
    max_backoff_s: float


def restart_delay_s(failures: list[float], now: float, policy: RestartPolicy) -> float | None:
    """How long to wait before the next start, or None when the budget is spent.

    `failures` are the times (s) of all failures so far, the one at `now` included.
    """
    recent = [at for at in failures if now - at <= policy.period_s]
    if len(recent) > policy.max_restarts:
        return None
    return min(policy.backoff_s * 2.0 ** (len(recent) - 1), policy.max_backoff_s)


async def supervise(name: str, child: Callable[[], Awaitable[None]], policy: RestartPolicy) -> None:
    """Run `child` for ever.  Raises the child's last error once its budget is spent."""
    failures: list[float] = []
    while True:
        try:
            await child()
            log.warning("a supervised task ended, it is started again", task=name)
        except Exception as error:
            failures.append(trio.current_time())
            delay_s = restart_delay_s(failures, failures[-1], policy)
            log.error("a supervised task failed", task=name, exc_info=error)
            if delay_s is None:
                raise
            await trio.sleep(delay_s)
        else:
            await trio.sleep(policy.backoff_s)


class TaskHome:
    """Where others start tasks that outlive them; open as long as `serve` runs."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None  # None while it is closed

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            try:
                task_status.started()
                await trio.sleep_forever()
            finally:
                self.nursery = None
