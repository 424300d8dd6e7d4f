"""One HTTP/2 stream carrying one call: its state, its windows, and the messages it receives.

Messages are put together as bytes arrive; a message's memory is taken from the byte budget when
its five-byte prefix was read, before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable

import trio

from kakeya.errors import Refused
from kakeya.rpc import life
from kakeya.rpc.flow import Budget
from kakeya.rpc.frames import MAX_WINDOW
from kakeya.rpc.headers import Fields
from kakeya.rpc.message import Buffer
from kakeya.rpc.status import RpcFailedError

PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")
Message = Buffer


class Stream:
    """State of one call on one connection; touched by that connection's tasks only.

    `window` is what the peer still lets us send, `recv_window` what we still let it send (bytes).
    """

    __slots__ = (
        "_buffer",
        "_filled",
        "_need",
        "_prefix",
        "_view",
        "arrived",
        "blocked_since",
        "failure",
        "head",
        "held_bytes",
        "inbox",
        "max_message_bytes",
        "memory",
        "message_since",
        "num_messages",
        "one_message",
        "opened_at",
        "recv_window",
        "scope",
        "sent_head",
        "state",
        "stream_id",
        "trailers",
        "window",
        "writable",
    )

    def __init__(
        self,
        stream_id: int,
        *,
        state: str,
        window: int,
        recv_window: int,
        max_message_bytes: int,
        one_message: bool,
        now: float,
    ) -> None:
        self.stream_id = stream_id
        self.state = state
        self.window = window
        self.recv_window = recv_window
        self.max_message_bytes = max_message_bytes
        # A second message is a fault of the peer.
        self.one_message = one_message
        # Where a message is put together, by its size.
        self.memory: Callable[[int], Buffer] = bytearray
        self.opened_at = now
        # When the message now arriving began, or inf between messages.
        self.message_since = math.inf
        # When we began to wait for the peer's window, or inf.
        self.blocked_since = math.inf
        self.head: Fields | None = None
        self.trailers: Fields | None = None
        self.failure: RpcFailedError | None = None
        self.sent_head = False
        self.inbox: deque[Message] = deque()
        self.num_messages = 0
        # Bytes of the budget that this stream's messages take up.
        self.held_bytes = 0
        # The handler's scope, on the serving side.
        self.scope: trio.CancelScope | None = None
        self.arrived: trio.Event | None = None
        self.writable: trio.Event | None = None
        self._prefix = b""
        self._buffer: Buffer | None = None
        self._view: memoryview | None = None
        self._filled = 0
        self._need = 0

    @property
    def is_over(self) -> bool:
        """Nothing more will be sent or received."""
        return self.state in life.ENDED

    @property
    def peer_ended(self) -> bool:
        return self.state not in life.PEER_SENDS

    @property
    def is_mid_message(self) -> bool:
        return self._buffer is not None or bool(self._prefix)

    @property
    def arriving_bytes(self) -> int:
        """Size of the message now arriving; 0 between messages."""
        return self._need

    def window_wanted(self, base_bytes: int) -> int:
        """How much the peer should be free to send, given what was consumed (bytes)."""
        if self.inbox:
            return max(0, base_bytes - (self.held_bytes - self._need))
        return max(base_bytes, self._need - self._filled)

    def wake(self) -> None:
        """Whoever waits for something to arrive, or for room to send, looks again."""
        if self.arrived is not None:
            self.arrived.set()
        if self.writable is not None:
            self.writable.set()

    def room(self) -> memoryview | None:
        """Where the next bytes of the message now arriving belong, or None between messages."""
        return None if self._view is None else self._view[self._filled :]

    def filled(self, num_bytes: int) -> None:
        """That many bytes were put into room()."""
        self._filled += num_bytes
        if self._filled == self._need:
            assert self._buffer is not None
            self._finish(self._buffer)

    def place(self, view: memoryview, budget: Budget, now: float) -> int:
        """Take DATA bytes in; returns how much window the peer needs on top to finish its message.

        Raises Refused for what fails this call alone.
        """
        extra = 0
        while view:
            if self._view is not None:
                taken = min(len(view), self._need - self._filled)
                self._view[self._filled : self._filled + taken] = view[:taken]
                self.filled(taken)
                view = view[taken:]
                continue
            if not self._prefix and len(view) >= PREFIX_BYTES:
                flag, need = _PREFIX.unpack_from(view)
                view = view[PREFIX_BYTES:]
            else:
                missing = PREFIX_BYTES - len(self._prefix)
                if not self._prefix:
                    self.message_since = now
                self._prefix += bytes(view[:missing])
                view = view[missing:]
                if len(self._prefix) < PREFIX_BYTES:
                    break
                flag, need = _PREFIX.unpack(self._prefix)
            self._admit(flag, need, budget)
            if need <= len(view):
                # The usual small message: whole in one frame.
                self._finish(bytes(view[:need]))
                view = view[need:]
                continue
            self._begin(need, now)
            if not self.inbox:
                # Else the grant waits until the messages before it were taken.
                extra += max(0, need - self.recv_window - extra)
        return extra

    def _admit(self, flag: int, need: int, budget: Budget) -> None:
        if self.one_message and self.num_messages:
            raise Refused("UNIMPLEMENTED", "this method takes one message a call, not more")
        if flag:
            raise Refused("UNIMPLEMENTED", "compressed messages are not accepted, only identity")
        limit = min(self.max_message_bytes, MAX_WINDOW // 2)
        if need > limit:
            raise Refused(
                "RESOURCE_EXHAUSTED", f"a message of {need} bytes, the limit is {limit} bytes"
            )
        if not budget.take(need):
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"no room for a message of {need} bytes, {budget.held_bytes} are held"
                f" and the limit of this connection is {budget.limit_bytes}",
            )
        self.held_bytes += need

    def _begin(self, need: int, now: float) -> None:
        self._need = need
        self._filled = 0
        self._buffer = self.memory(need)
        self._view = memoryview(self._buffer)
        self.message_since = now

    def _finish(self, message: Message) -> None:
        self._prefix = b""
        self._buffer = self._view = None
        self._need = 0
        self.message_since = math.inf
        self.num_messages += 1
        self.inbox.append(message)
        if self.arrived is not None:
            self.arrived.set()

    def drop(self) -> None:
        """Forget what arrived."""
        self._prefix = b""
        self._buffer = self._view = None
        self._need = 0
        self.message_since = math.inf
        self.inbox.clear()
