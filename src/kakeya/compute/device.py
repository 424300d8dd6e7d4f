"""Where tensor work runs: one operating-system thread per engine, and the queue in front of it.

MLX arrays belong to the thread that made them, so neither trio.to_thread nor CapacityLimiter(1)
will do: both pick any idle thread.  Jobs are short by contract (about 50 ms); long work is cut
into chunks by its caller.  First come, first served: who asks for one job at a time waits for at
most one of everybody else.  Knows nothing of tensors.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import outcome
import trio

from kakeya.errors import Refused, demand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """What a job returned, and how long it ran (s); the wait for its turn is not in it."""

    result: T
    job_s: float


class WorkClock:
    """How long a device has worked: written by who runs its jobs, read by anybody."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # Of jobs that ended, and when the present one began: one value, so that a reader on
        # another thread never sees half of it.
        self._state: tuple[float, float | None] = (0.0, None)

    def begin(self) -> None:
        self._state = self._state[0], self._now()

    def end(self) -> float:
        """How long the job that ends now ran (s)."""
        done_s, began_s = self._state
        assert began_s is not None
        job_s = self._now() - began_s
        self._state = done_s + job_s, None
        return job_s

    def timed(self, run: Callable[[], T]) -> Timed[T]:
        """Run a job."""
        self.begin()
        try:
            result = run()
        finally:
            job_s = self.end()
        return Timed(result, job_s)

    @property
    def total_s(self) -> float:
        """All jobs together, the present one as far as it is."""
        done_s, began_s = self._state
        return done_s if began_s is None else done_s + self._now() - began_s


class Job:
    """One piece of work on its way to the thread, and the task that sleeps until it is back.

    The thread goes on a little after it has told the result: what it still holds by then is this
    object, with neither the work's arguments nor its result in it.
    """

    __slots__ = ("_result", "_runs", "_task")

    def __init__(self, run: Callable[[], Any]) -> None:
        # Whoever pops it decides: the thread that works, or the sleeper that leaves.
        self._runs = [run]
        self._result: Any = None
        self._task = trio.lowlevel.current_task()

    def work(self, clock: WorkClock) -> bool:
        """On the thread; False for a job that was given up while it waited."""
        try:
            run = self._runs.pop()
        except IndexError:
            return False
        # No name for the result here: a failed one holds frames, and they hold this one.
        self._result = outcome.capture(clock.timed, run)
        return True

    def refuse(self, refused: Refused) -> bool:
        """On the thread, at its end; False for a job that was given up."""
        try:
            self._runs.pop()
        except IndexError:
            return False
        self._result = outcome.Error(refused)
        return True

    def settle(self) -> None:
        """On the loop: the sleeper wakes with the result."""
        result, self._result = self._result, None
        trio.lowlevel.reschedule(self._task, result)

    def give_up(self, _: Any) -> trio.lowlevel.Abort:
        """On the loop: the sleeper is cancelled; a job that has begun ends all the same."""
        try:
            self._runs.pop()
        except IndexError:
            return trio.lowlevel.Abort.FAILED
        return trio.lowlevel.Abort.SUCCEEDED


class Device(Protocol):
    """Runs jobs one at a time, first come first served."""

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        """Run `fn(*args)` as one job; cancellable while queued, never while running.

        Raises what `fn` raised, and Refused: RESOURCE_EXHAUSTED when the queue is full,
        UNAVAILABLE when the device has stopped.
        """
        ...

    async def timed(self, fn: Callable[..., T], *args: Any) -> Timed[T]:
        """The same, with how long the job ran."""
        ...

    @property
    def busy_s(self) -> float:
        """How long it has worked so far (s)."""
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
        self._clock = WorkClock(time.perf_counter)
        self._is_over = False

    @property
    def busy_s(self) -> float:
        return self._clock.total_s

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
        """On the thread: jobs in the order they came; the next one begins without the loop."""
        while (job := self._jobs.get()) is not None:
            if job.refuse(self._stopped()) if self._is_over else job.work(self._clock):
                token.run_sync_soon(job.settle)

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        return (await self.timed(fn, *args)).result

    async def timed(self, fn: Callable[..., T], *args: Any) -> Timed[T]:
        demand(
            self._waiting < self._max_waiting,
            "RESOURCE_EXHAUSTED",
            f"{self._waiting} jobs wait for {self._name}, the limit is {self._max_waiting}",
        )
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_over:
            # Behind the end of the queue nobody would ever come for the job.
            raise self._stopped()
        self._waiting += 1
        try:
            job = Job(partial(fn, *args))
            self._jobs.put(job)
            # An Event in a shielded scope would be the same, at twice the cost to the loop.
            return await trio.lowlevel.wait_task_rescheduled(job.give_up)  # type: ignore[no-any-return]
        finally:
            self._waiting -= 1

    def _stopped(self) -> Refused:
        return Refused("UNAVAILABLE", f"{self._name} has stopped")


class InlineDevice:
    """The same contract with no thread: a job costs `job_s` seconds of (mock) time."""

    def __init__(self, job_s: float = 0.0) -> None:
        self.job_s = job_s
        self._turn = trio.Lock()
        self._clock = WorkClock(trio.current_time)

    @property
    def busy_s(self) -> float:
        return self._clock.total_s

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        return (await self.timed(fn, *args)).result

    async def timed(self, fn: Callable[..., T], *args: Any) -> Timed[T]:
        async with self._turn:
            self._clock.begin()
            try:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.job_s)
                result = fn(*args)
            finally:
                job_s = self._clock.end()
            return Timed(result, job_s)
