"""Inside a simulation nothing of the product may reach for the world: it raises instead.

`tests/test_seams.py` reads the code for that; this watches what really runs, libraries included
where they are started by the product.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Names that the product might call, and that would make one seed two runs.
CALLS: tuple[tuple[Any, str], ...] = (
    (time, "time"),
    (time, "time_ns"),
    (time, "monotonic"),
    (time, "sleep"),
    (os, "urandom"),
    (uuid, "uuid4"),
    (uuid, "uuid1"),
    *((random, name) for name in ("random", "choice", "shuffle", "uniform", "randint", "sample",
                                  "randrange", "getrandbits")),
)  # fmt: skip
# What the interpreter itself reports: whoever asks, nobody in a simulation should.
EVENTS = ("socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen")
PRODUCT = "kakeya"

_is_closed = False


class ReachedOut(RuntimeError):
    """The product reached for the world from within a simulation."""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_closed and event in EVENTS:
        raise ReachedOut(f"{event} inside a simulation")


sys.addaudithook(_watch)


@contextmanager
def closed() -> Iterator[None]:
    """Raise ReachedOut on every call of the product to clock, chance, sockets or threads."""
    global _is_closed
    before = [(module, name, getattr(module, name)) for module, name in CALLS]
    was_closed, _is_closed = _is_closed, True
    start_thread = threading.Thread.start
    threading.Thread.start = _no_thread  # type: ignore[method-assign]
    for module, name, call in before:
        setattr(module, name, _guarded(f"{module.__name__}.{name}", call))
    try:
        yield
    finally:
        _is_closed = was_closed
        threading.Thread.start = start_thread  # type: ignore[method-assign]
        for module, name, call in before:
            setattr(module, name, call)


def _no_thread(thread: threading.Thread) -> None:
    raise ReachedOut(f"a thread was started inside a simulation: {thread.name}")


def _guarded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.split(".")[0] == PRODUCT:
            raise ReachedOut(f"{caller} called {name} inside a simulation")
        return call(*args, **kwargs)

    return guarded
