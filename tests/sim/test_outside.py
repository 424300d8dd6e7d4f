"""A simulation is closed: the product cannot reach the world from inside."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest

from tests.sim.outside import ReachedOut, closed


def called_by(module: str, code: str):
    """Run code as if it stood in `module`."""
    exec(code, {"__name__": module, "time": time, "random": random, "os": os})


@pytest.mark.parametrize(
    "code", ["time.time()", "time.monotonic()", "random.random()", "os.urandom(4)"]
)
def test_the_product_is_stopped_and_others_are_not(code):
    with closed():
        with pytest.raises(ReachedOut, match=r"kakeya\.node\.run called"):
            called_by("kakeya.node.run", code)
        called_by("trio._core", code)
    called_by("kakeya.node.run", code)


def test_nobody_starts_a_thread_or_opens_a_socket():
    with closed():
        with pytest.raises(ReachedOut):
            threading.Thread(target=print).start()
        with socket.socket() as sock, pytest.raises(ReachedOut):
            sock.connect(("127.0.0.1", 9))
        with pytest.raises(ReachedOut):
            socket.getaddrinfo("localhost", 1)
    socket.getaddrinfo("localhost", 1)
