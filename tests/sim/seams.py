"""What a simulated node gets in place of clock, chance, disk, threads and sockets."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from kakeya.compute.device import Timed
from kakeya.config.settings import Settings
from kakeya.errors import demand
from kakeya.fleet.address import kind_of
from kakeya.fleet.store import Saved
from kakeya.node.drafters import LoadedDrafter
from kakeya.node.seams import Seams
from kakeya.node.served import ServedModel
from tests.sim.drafter import Hears, loaded
from tests.sim.model import SimTokenizer, SimVerifier
from tests.sim.network import MemoryDialer, MemoryListener, Network, bind

T = TypeVar("T")
# Where the simulated epoch begins, s.
NOW = 1_700_000_000.0
MAX_WAITING_JOBS = 256


@dataclass
class Clock:
    """A wall clock that may be off, and may run fast or slow."""

    offset_s: float = 0.0
    drift: float = 0.0

    def __call__(self) -> float:
        now_s = trio.current_time()
        return NOW + now_s * (1.0 + self.drift) + self.offset_s


@dataclass
class Disk:
    """A Store whose content survives a crash; a process that is gone writes nothing more."""

    saved: Saved = field(default_factory=Saved)
    life: int = 0
    is_full: bool = False


@dataclass(frozen=True)
class DiskStore:
    """One process's way to the disk."""

    disk: Disk
    life: int

    def load(self) -> Saved:
        return self.disk.saved

    async def save(self, saved: Saved) -> None:
        await trio.lowlevel.checkpoint()
        if self.disk.is_full:
            raise OSError(28, "No space left on device")
        if self.life == self.disk.life:
            self.disk.saved = saved


class SimDevice:
    """A device without a thread: each job costs drawn virtual seconds.

    slowness: a factor on them.  fails: the next jobs raise, as broken hardware would make them.
    """

    def __init__(self, *, rng: random.Random, job_s: float) -> None:
        self.slowness = 1.0
        self.fails = False
        self.num_waiting = 0
        self.busy_s = 0.0
        self._rng = rng
        self._job_s = job_s
        self._turn = trio.Lock()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        return (await self.timed(fn, *args)).result

    async def timed(self, fn: Callable[..., T], *args: Any) -> Timed[T]:
        demand(self.num_waiting < MAX_WAITING_JOBS, "RESOURCE_EXHAUSTED", "too many jobs wait")
        self.num_waiting += 1
        try:
            async with self._turn:
                job_s = self._job_s * self.slowness * self._rng.uniform(0.8, 1.2)
                with trio.CancelScope(shield=True):
                    await trio.sleep(job_s)
                self.busy_s += job_s
                if self.fails:
                    raise RuntimeError("the device failed")
                return Timed(fn(*args), job_s)
        finally:
            self.num_waiting -= 1


def sim_seams(
    network: Network,
    name: str,
    *,
    machine: str,
    seed: int,
    boot: int,
    clock: Clock,
    disk: Disk,
    devices: dict[str, SimDevice],
    blur: float,
    hears: Hears = lambda rows: None,
) -> Seams:
    """The world as one life of a node sees it; the devices it makes are put into `devices`.

    hears: told of every context that a session of the node drafts from.
    """
    host = network.machine(machine)

    def rng(purpose: str) -> random.Random:
        return random.Random(f"{seed}/{purpose}/{name}/{boot}")

    def make_device(purpose: str) -> SimDevice:
        job_s = {"verifying": 0.03, "dflash": 0.004}.get(purpose, 0.001)
        devices[purpose] = SimDevice(rng=rng(purpose), job_s=job_s)
        return devices[purpose]

    async def listen(bound: str, port: int, *, flag: str = "--port") -> list[MemoryListener]:
        await trio.lowlevel.checkpoint()
        return [bind(network, machine, bound, port)]

    async def route(to_host: str, port: int) -> str:
        await trio.lowlevel.checkpoint()
        if host.knows_no_names:
            return ""
        return "127.0.0.1" if kind_of(to_host) == "loopback" else min(host.hosts)

    def load_model(settings: Settings, progress: Callable[[str, float], None]) -> ServedModel:
        return ServedModel(SimVerifier(blur=blur), SimTokenizer())  # type: ignore[arg-type]

    def load_drafter(
        settings: Settings, which: str, progress: Callable[[str, float], None]
    ) -> LoadedDrafter:
        return loaded(hears)

    return Seams(
        wall=clock,
        rng=rng,
        dialer=MemoryDialer(network, machine),
        listen=listen,  # type: ignore[arg-type]
        route=route,
        store=DiskStore(disk, disk.life),
        make_device=make_device,
        load_model=load_model,
        load_drafter=load_drafter,
    )
