"""Where tensor work runs: one operating-system thread per engine, and the queue in front of it.

MLX arrays belong to the thread that made them, so neither trio.to_thread nor CapacityLimiter(1)
will do: both pick any idle thread.  Jobs are short by contract (about 50 ms); long work is cut
into chunks by its caller.  Knows nothing of tensors.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import outcome
import trio

from kakeya.errors import Refused, demand

T = TypeVar("T")


class Job:
    """One piece of work on its way to the thread, and the task that sleeps until it is back.

    The thread goes on a little after it has told the result: what it still holds by then is this
    object, with neither the work's arguments nor its result in it.
    """

    __slots__ = ("_result", "_run", "_task")

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run: Callable[[], Any] | None = run
        self._result: Any = None
        self._task = trio.lowlevel.current_task()

    def work(self) -> None:
        """On the thread."""
        run, self._run = self._run, None
        assert run is not None
        self._result = outcome.capture(run)

    def settle(self) -> None:
        """On the loop: the sleeper wakes with the result."""
        result, self._result = self._result, None
        trio.lowlevel.reschedule(self._task, result)


class Device(Protocol):
    """Runs jobs one at a time, first come first served."""

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run `fn(*args)` as one job; cancellable while queued, never while running.

        Raises what `fn` raised, and Refused: RESOURCE_EXHAUSTED when the queue is full,
        UNAVAILABLE when the device has stopped.
        """
        ...


class LivingDevice(Device, Protocol):
    """A device somebody has to keep alive."""

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve jobs until cancelled."""
        ...


class ThreadDevice:
    """The real device: always the same thread."""

    def __init__(self, *, name: str, max_waiting: int) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._waiting = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._turn = trio.Lock()
        self._is_over = False

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the thread alive; cancelling this ends it after the current job."""
        loop = partial(self._loop, trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    trio.to_thread.run_sync,
                    loop,
                    thread_name=self._name,
                    limiter=trio.CapacityLimiter(1),
                )
            )
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._is_over = True
                self._jobs.put(None)

    def _loop(self, token: trio.lowlevel.TrioToken) -> None:
        while (job := self._jobs.get()) is not None:
            job.work()
            token.run_sync_soon(job.settle)

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        demand(
            self._waiting < self._max_waiting,
            "RESOURCE_EXHAUSTED",
            f"{self._waiting} jobs wait for {self._name}, the limit is {self._max_waiting}",
        )
        self._waiting += 1
        try:
            async with self._turn:
                if self._is_over:
                    # Behind the end of the queue nobody would ever come for the job.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    raise Refused("UNAVAILABLE", f"{self._name} has stopped")
                self._jobs.put(Job(partial(fn, *args)))
                # An Event in a shielded scope would be the same, at twice the cost to the loop.
                return await trio.lowlevel.wait_task_rescheduled(_never)  # type: ignore[no-any-return]
        finally:
            self._waiting -= 1


def _never(_: Any) -> trio.lowlevel.Abort:
    """A job that has begun ends."""
    return trio.lowlevel.Abort.FAILED


class InlineDevice:
    """The same contract with no thread: a job costs `job_s` seconds of (mock) time."""

    def __init__(self, job_s: float = 0.0) -> None:
        self.job_s = job_s
        self._turn = trio.Lock()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        async with self._turn:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.job_s)
            return fn(*args)
