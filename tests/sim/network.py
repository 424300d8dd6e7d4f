"""Byte streams between simulated machines: latency, jitter, throughput, and all that goes wrong.

What TCP promises is kept: bytes come in order or not at all, a lost packet is a late one, and a
cut link is silent until it heals.  Reordering is what happens between connections.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import trio

from tests.sim.trace import Trace

# What a sender may have on its way before it waits, as a kernel's buffers would have it.
IN_FLIGHT_BYTES = 256 << 10
# A lost packet comes this much later, doubled for each further loss.
RETRANSMIT_S = 0.2
RESET = object()


@dataclass
class Weather:
    """What packets meet, everywhere."""

    latency_s: float = 0.001
    jitter_s: float = 0.001
    bytes_per_s: float = 50e6
    loss: float = 0.0


@dataclass(eq=False)
class Machine:
    """A host by its name; it outlives the process that runs on it.

    is_up: the process takes connections.  is_frozen: the kernel accepts, nobody reads.
    slow_s: what each packet to or from it waits more.  knows_no_names: its resolver fails.
    """

    name: str
    hosts: set[str] = field(default_factory=set)
    is_up: bool = False
    is_frozen: bool = False
    knows_no_names: bool = False
    slow_s: float = 0.0
    listeners: dict[int, MemoryListener] = field(default_factory=dict)
    streams: list[MemoryStream] = field(default_factory=list)

    @property
    def num_streams(self) -> int:
        return sum(not stream.is_over for stream in self.streams)


class Network:
    """All machines, the links between them, and who hears what when."""

    def __init__(self, *, rng: random.Random, trace: Trace, weather: Weather | None = None) -> None:
        self.weather = weather or Weather()
        self.machines: dict[str, Machine] = {}
        self.places: dict[str, Machine] = {}  # by host name
        self.cuts: set[tuple[str, str]] = set()
        # Called once for the first piece that carries the bytes: (bytes, machine it goes to, act).
        self.watches: list[tuple[bytes, str, Callable[[], None]]] = []
        # Connections to end after so many bytes more: (from, to) by names of machines.
        self.breaks: dict[tuple[str, str], int] = {}
        self.dialled: Counter[tuple[str, str]] = Counter()  # by machine and address
        self._rng = rng
        self._trace = trace
        self._changed = trio.Event()
        self._next_port = 40_000

    def machine(self, name: str) -> Machine:
        """The machine of that name, reached by its name until it moves."""
        if name not in self.machines:
            self.machines[name] = self.places[name] = Machine(name, {name})
        return self.machines[name]

    def move(self, name: str, host: str) -> None:
        """Give a machine another host name; the old one leads nowhere, connections stall."""
        machine = self.machines[name]
        for old in machine.hosts:
            del self.places[old]
        machine.hosts = {host}
        self.places[host] = machine
        for stream in machine.streams:
            # Its address is gone: what was connected to it hears nothing any more.
            stream.incoming.is_lost = stream.outgoing.is_lost = True
        self.change()

    # ---- links

    def blocks(self, from_name: str, to_name: str) -> bool:
        """Whether bytes wait between the two machines."""
        ends = self.machines[from_name], self.machines[to_name]
        return any(end.is_frozen for end in ends) or (from_name, to_name) in self.cuts

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        self.cuts.add((a, b))
        if not one_way:
            self.cuts.add((b, a))
        self.change()

    def isolate(self, name: str) -> None:
        """Cut a machine from all others."""
        for other in self.machines:
            if other != name:
                self.cut(name, other)

    def heal(self) -> None:
        """Mend every link and wake every frozen machine; what waited comes now."""
        self.cuts.clear()
        self.weather.loss = 0.0
        for machine in self.machines.values():
            machine.is_frozen = False
            machine.slow_s = 0.0
            machine.knows_no_names = False
        self.change()

    def change(self) -> None:
        """Let everybody who waits look again."""
        self._changed.set()
        self._changed = trio.Event()
        for machine in self.machines.values():
            for listener in machine.listeners.values():
                listener.wake()
            for stream in machine.streams:
                stream.incoming.wake()

    def delay_s(self, from_name: str, to_name: str) -> float:
        """How long a packet takes that leaves now."""
        weather, rng = self.weather, self._rng
        delay_s = weather.latency_s + weather.jitter_s * rng.random()
        lost, again_s = weather.loss, RETRANSMIT_S
        while lost and rng.random() < lost and again_s < 10:
            delay_s += again_s
            again_s *= 2
        return delay_s + self.machines[from_name].slow_s + self.machines[to_name].slow_s

    # ---- connections

    async def dial(self, from_name: str, address: str) -> MemoryStream:
        """A stream to HOST:PORT.  Raises OSError; waits for ever where packets are dropped."""
        self.dialled[from_name, address] += 1
        host, _, port = address.rpartition(":")
        here = self.machines[from_name]
        if here.knows_no_names:
            await trio.sleep(0.01)
            raise OSError("no such name")
        there = self.places.get(host)
        while (
            there is None
            or (from_name, there.name) in self.cuts
            or ((there.name, from_name) in self.cuts)
        ):
            await self._changed.wait()
            there = self.places.get(host)
        await trio.sleep(self.delay_s(from_name, there.name) + self.delay_s(there.name, from_name))
        listener = there.listeners.get(int(port)) if there.is_up else None
        if listener is None:
            raise OSError("connection refused")
        self._next_port += 1
        names = (host, int(port)), (from_name, self._next_port)
        ours, theirs = self._pair(here, there, names)
        self._trace.note("dial", from_name, there.name)
        listener.offer(theirs)
        return ours

    def _pair(
        self, here: Machine, there: Machine, names: tuple[tuple[str, int], tuple[str, int]]
    ) -> tuple[MemoryStream, MemoryStream]:
        to_there, to_here = Pipe(self, here.name, there.name), Pipe(self, there.name, here.name)
        ours = MemoryStream(to_there, to_here, peer=names[0])
        theirs = MemoryStream(to_here, to_there, peer=names[1])
        for machine, stream in ((here, ours), (there, theirs)):
            machine.streams = [each for each in machine.streams if not each.is_over]
            machine.streams.append(stream)
        return ours, theirs

    def down(self, name: str, *, says_so: bool = True) -> None:
        """End a process at once: its kernel resets every connection, or dies with it."""
        machine = self.machines[name]
        machine.is_up = False
        machine.listeners.clear()
        for stream in machine.streams:
            stream.abandon(says_so=says_so)
        machine.streams = []

    def passes(self, pipe: Pipe, piece: bytes) -> bool:
        """Look at bytes on their way; False when their connection breaks in the middle of them."""
        ends = pipe.from_name, pipe.to_name
        self._trace.count("bytes", *ends, len(piece))
        for watch in [w for w in self.watches if w[1] == pipe.to_name and w[0] in piece]:
            self.watches.remove(watch)
            watch[2]()
        left = self.breaks.get(ends)
        if left is None:
            return True
        self.breaks[ends] = left - len(piece)
        if self.breaks[ends] < 0:
            del self.breaks[ends]
            return False
        return True


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, from_name: str, to_name: str) -> None:
        self.network = network
        self.from_name = from_name
        self.to_name = to_name
        self.num_bytes = 0
        # The reader has closed; nothing goes through any more.
        self.is_shut = False
        # The reader died with its kernel; the next one knows nothing of the connection.
        self.is_orphan = False
        self.is_lost = False
        self._pieces: deque[tuple[float, object]] = deque()
        self._last_s = 0.0
        self._free_s = 0.0
        self._woken = trio.Event()
        self._room = trio.Event()

    @property
    def is_blocked(self) -> bool:
        return self.is_lost or self.network.blocks(self.from_name, self.to_name)

    @property
    def is_refused(self) -> bool:
        """Whether whoever is at the other end answers what is sent now by a reset."""
        is_back = self.is_orphan and self.network.machines[self.to_name].is_up
        return (self.is_shut or is_back) and not self.is_blocked

    def wake(self) -> None:
        self._woken.set()
        self._room.set()

    def put(self, piece: object, size: int) -> None:
        """Send bytes, b"" for the end, RESET for a connection that broke."""
        now_s = trio.current_time()
        self._free_s = max(now_s, self._free_s) + size / self.network.weather.bytes_per_s
        due_s = self._free_s + self.network.delay_s(self.from_name, self.to_name)
        self._last_s = max(self._last_s, due_s)
        self._pieces.append((self._last_s, piece))
        self.num_bytes += size
        self._woken.set()

    def clear(self) -> None:
        """Lose what is on its way."""
        self._pieces.clear()
        self.num_bytes = 0
        self.wake()

    async def room(self) -> None:
        while self.num_bytes > IN_FLIGHT_BYTES:
            self._room = trio.Event()
            await self._room.wait()

    def ready(self, max_bytes: int) -> object | None:
        """What has arrived, at most `max_bytes` of it; None when nothing has."""
        if not self._pieces or self.is_blocked:
            return None
        due_s, first = self._pieces[0]
        if due_s > trio.current_time():
            return None
        if not isinstance(first, bytes) or not first:
            return first  # stays: the end is the end for whoever asks again
        self._pieces.popleft()
        if len(first) > max_bytes:
            self._pieces.appendleft((due_s, first[max_bytes:]))
            first = first[:max_bytes]
        self.num_bytes -= len(first)
        self._room.set()
        return first

    async def next(self, max_bytes: int) -> object:
        while (piece := self.ready(max_bytes)) is None:
            self._woken = trio.Event()
            due_s = self._pieces[0][0] if self._pieces and not self.is_blocked else inf
            with trio.move_on_at(due_s):
                await self._woken.wait()
        return piece


class MemoryStream(trio.abc.Stream):
    """One end of a connection; `socket` is all that anybody asks of a real one."""

    def __init__(self, outgoing: Pipe, incoming: Pipe, *, peer: tuple[str, int]) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.socket = MemorySocket(peer)
        self._is_closed = False
        self._is_broken = False

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._is_broken

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self.outgoing.is_refused:
            self._is_broken = True
        self._demand_open()
        piece = bytes(data)
        if not self.outgoing.network.passes(self.outgoing, piece):
            # Half of it leaves, and then the connection is gone, at both ends.
            self.outgoing.put(piece[: len(piece) // 2], len(piece) // 2)
            self.outgoing.put(RESET, 0)
            self._is_broken = True
            self.incoming.clear()
            raise trio.BrokenResourceError("the connection was reset")
        self.outgoing.put(piece, len(piece))
        await self.outgoing.room()
        self._demand_open()

    def _demand_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._is_broken:
            raise trio.BrokenResourceError("the connection was reset")

    async def wait_send_all_might_not_block(self) -> None:
        await self.outgoing.room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self._demand_open()
        while True:
            piece = await self.incoming.next(max_bytes or 1 << 20)
            self._demand_open()
            if piece is RESET:
                self._is_broken = True
                self.outgoing.clear()
                raise trio.BrokenResourceError("the connection was reset")
            assert isinstance(piece, bytes)
            return piece

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """What was sent still arrives; what was not read is answered by a reset."""
        if self.is_over:
            return
        self._is_closed = True
        self.outgoing.put(b"", 0)
        self.incoming.is_shut = True
        self.incoming.clear()

    def abandon(self, *, says_so: bool) -> None:
        """The process is gone; `says_so`: its kernel resets the connection."""
        if self.is_over:
            return
        self._is_broken = True
        self.incoming.clear()
        if says_so:
            self.outgoing.put(RESET, 0)
        else:
            self.incoming.is_orphan = True


@dataclass
class MemorySocket:
    """Names, and close(), as listeners and streams are asked for them."""

    name: tuple[str, int]
    on_close: Callable[[], None] = lambda: None

    def getpeername(self) -> tuple[str, int]:
        return self.name

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def close(self) -> None:
        self.on_close()


class MemoryListener(trio.abc.Listener[MemoryStream]):
    """A listener that looks like a socket's."""

    def __init__(self, machine: Machine, host: str, port: int) -> None:
        self.socket = MemorySocket((host, port), self._close)
        self._machine = machine
        self._port = port
        self._backlog: deque[MemoryStream] = deque()
        self._offered = trio.Event()
        self._is_closed = False

    def offer(self, stream: MemoryStream) -> None:
        self._backlog.append(stream)
        self._offered.set()

    async def accept(self) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        while not self._backlog or self._machine.is_frozen:
            if self._is_closed:
                raise trio.ClosedResourceError
            self._offered = trio.Event()
            await self._offered.wait()
        return self._backlog.popleft()

    def wake(self) -> None:
        self._offered.set()

    def _close(self) -> None:
        self._is_closed = True
        if self._machine.listeners.get(self._port) is self:
            del self._machine.listeners[self._port]
        for stream in self._backlog:
            stream.abandon(says_so=True)
        self._offered.set()

    async def aclose(self) -> None:
        self._close()
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True)
class MemoryDialer:
    """The Dialer of one machine."""

    network: Network
    name: str

    async def open(self, address: str) -> trio.abc.Stream:
        return await self.network.dial(self.name, address)


def bind(network: Network, name: str, host: str, port: int) -> MemoryListener:
    """Open a listener of a machine.  Raises OSError when the port is taken."""
    machine = network.machine(name)
    if port in machine.listeners:
        raise OSError(f"port {port} is in use")
    listener = machine.listeners[port] = MemoryListener(machine, host, port)
    machine.is_up = True
    return listener
