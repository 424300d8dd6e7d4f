"""Channels to peers: one shared connection per address, dialled when needed, redialled when lost.

A Channel goes straight into purerpc's generated stubs.  Calls never hang: without a connection
they fail at once, or as soon as the dial fails.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.client import Client, PurerpcStream
from kakeya.rpc.dialing import Dialer, TcpDialer
from kakeya.rpc.flow import Budget
from kakeya.rpc.headers import encode_metadata
from kakeya.rpc.message import Readers
from kakeya.rpc.status import RpcFailedError, again, failure
from kakeya.rpc.tls import TlsStream
from kakeya.rpc.wire import Connection
from kakeya.supervision import TaskHome

log = structlog.get_logger(__name__)

__all__ = ["Channel", "Channels", "Dialer", "TcpDialer"]


@dataclass(eq=False, slots=True)
class _Dial:
    """An attempt that callers wait for together."""

    done: trio.Event = field(default_factory=trio.Event)
    error: RpcFailedError | None = None
    num_waiting: int = 0


class Channels:
    """All connections of one node to its peers; `serve` must run while they are used.

    `readers` read the answers of the types they are for, in place of protobuf's own parser.
    """

    def __init__(
        self,
        *,
        dialer: Dialer,
        limits: RpcLimits,
        rng: random.Random,
        metadata: Sequence[tuple[str, str]] = (),
        budget: Budget | None = None,
        readers: Readers | None = None,
    ) -> None:
        self.dialer = dialer
        self.limits = limits
        self.rng = rng
        self.readers: Readers = readers or {}
        self.metadata_block = encode_metadata(metadata)
        # A node hands the same one to its endpoint: the limit is on what both hold together.
        self.budget = budget or Budget(limits.node_budget_bytes)
        self.scratch = bytearray(limits.read_bytes)
        self._channels: OrderedDict[str, Channel] = OrderedDict()
        self._home = TaskHome()

    def to(self, address: str) -> Channel:
        """The channel to `host:port`; nothing is dialled yet."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(self, address)
            self._forget_unused()
        self._channels.move_to_end(address)
        return channel

    def drop(self, address: str) -> None:
        """Close the connection to an address that is not used any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.drop()

    def drop_all(self) -> None:
        """Close every connection; calls under way fail, the next ones dial."""
        for channel in list(self._channels.values()):
            channel.drop()

    def _forget_unused(self) -> None:
        """Keep to the cap: channels without a connection go first, the longest unused of them."""
        surplus = len(self._channels) - self.limits.max_channels
        for address in [a for a, c in self._channels.items() if not c.is_busy][:-1]:
            if surplus <= 0:
                return
            del self._channels[address]
            surplus -= 1

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the connections' tasks until cancelled."""
        await self._home.serve(task_status)

    @property
    def nursery(self) -> trio.Nursery:
        if self._home.nursery is None:
            raise failure("UNAVAILABLE", "this node is stopping")
        return self._home.nursery


class Channel:
    """One peer.  Made by Channels.to."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._channels = channels
        self.address = address
        self.limits = channels.limits
        self.readers = channels.readers
        self.metadata_block = channels.metadata_block
        self.authority = address
        self.scheme = "http"
        self._connection: Connection | None = None
        self._dial: _Dial | None = None
        self._num_failures = 0
        self._retry_at = 0.0
        self._last_error: RpcFailedError | None = None
        # What purerpc.Client asks of its channel.
        self._grpc_socket = self
        self._host, _, self._port = address.rpartition(":")

    @property
    def is_busy(self) -> bool:
        """A connection is there or being made."""
        return self._dial is not None or self._usable() is not None

    def client(self, service: str) -> Client:
        """What the generated stubs make their methods from."""
        return Client(service, self)

    async def start_request(
        self,
        scheme: str,
        service_name: str,
        method_name: str,
        *args: Any,
        custom_metadata: Sequence[tuple[str, Any]] = (),
    ) -> PurerpcStream:
        """The seam of purerpc's own client: a call in the form that its stubs drive."""
        path = f"/{service_name}/{method_name}"
        return PurerpcStream(self, path, tuple(custom_metadata or ()))

    def drop(self) -> None:
        """End the connection, if any: the peer is gone or has moved."""
        if self._connection is not None:
            self._connection.close(failure("UNAVAILABLE", f"{self.address} is not used any more"))

    def forgive(self) -> None:
        """Dial at the next call whatever failed before: there is news of the peer."""
        self._num_failures, self._retry_at = 0, 0.0

    async def connected(self) -> Connection:
        """The live connection, dialled when there is none.  Raises RpcFailedError(UNAVAILABLE)."""
        connection = self._usable()
        if connection is not None:
            return connection
        if self._dial is None:
            self._demand_patience()
            self._dial = _Dial()
            self._channels.nursery.start_soon(self._connect, self._dial)
        dial = self._dial
        if dial.num_waiting >= self.limits.max_waiting_calls:
            text = f"{dial.num_waiting} calls wait for {self.address}, the limit is reached"
            raise failure("RESOURCE_EXHAUSTED", text)
        dial.num_waiting += 1
        try:
            await dial.done.wait()
        finally:
            dial.num_waiting -= 1
        connection = self._usable()
        if connection is not None:
            return connection
        raise again(dial.error or failure("UNAVAILABLE", f"{self.address} closed the connection"))

    def _usable(self) -> Connection | None:
        connection = self._connection
        if connection is None or connection.closed is not None or connection.is_going:
            return None
        return connection

    def _demand_patience(self) -> None:
        """Raise the last dial's error while its back-off lasts."""
        if self._last_error is not None and trio.current_time() < self._retry_at:
            raise again(self._last_error)

    async def _connect(self, dial: _Dial) -> None:
        """Dial once and run the connection until it ends."""
        try:
            transport = await self._open()
        except RpcFailedError as error:
            dial.error = error
            self._failed(error)
            return
        finally:
            self._dial = None
            # Who waits runs after this task's next checkpoint, when the connection is there.
            dial.done.set()
        self.scheme = "https" if isinstance(transport, TlsStream | trio.SSLStream) else "http"
        connection = Connection(
            transport,
            limits=self.limits,
            node_budget=self._channels.budget,
            scratch=self._channels.scratch,
        )
        self._connection = connection
        await _run_contained(connection)
        if connection.inbound.has_settings:
            self._num_failures, self._last_error = 0, None
        elif connection.closed is not None:
            # It answered, but not in HTTP/2.
            self._failed(connection.closed)

    def _failed(self, error: RpcFailedError) -> None:
        self._last_error = error
        self._num_failures += 1
        self._retry_at = trio.current_time() + self._backoff_s()

    async def _open(self) -> trio.abc.Stream:
        limit_s = self.limits.dial_s
        with trio.move_on_after(limit_s):
            try:
                return await self._channels.dialer.open(self.address)
            except OSError as error:
                text = f"cannot connect to {self.address}: {_reason(error)}"
                raise failure("UNAVAILABLE", text) from None
        raise failure("UNAVAILABLE", f"no connection to {self.address} within {limit_s:g} s")

    def _backoff_s(self) -> float:
        """Doubled per failure up to the cap, with jitter so that peers do not redial in step."""
        doubled = self.limits.backoff_s * 2.0 ** min(self._num_failures - 1, 30)
        return min(doubled, self.limits.max_backoff_s) * self._channels.rng.uniform(0.5, 1.0)


async def _run_contained(connection: Connection) -> None:
    try:
        await connection.run()
    except Exception:
        log.exception("a connection to a peer failed on our own mistake")


def _reason(error: BaseException) -> str:
    """The text of the last of several attempts, without Python's own words."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return _reason(cause.exceptions[-1])
    if isinstance(cause, OSError):
        return _reason(cause)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
