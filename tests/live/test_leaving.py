"""Clients that leave the verifying node, and what becomes of their work on both nodes."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager

import pytest

from kakeya.cli.bench_prompts import held_out
from tests.cli.nodes import NodeProcess, eventually
from tests.http.test_live import generations, get
from tests.http.test_metrics import read
from tests.live.client import hear
from tests.live.promise import tiny_pair

# One generation at a time, so that another waits; a prompt read id by id takes its time.
SLOW = ("--set", "node.max_generations=1", "--set", "verifying.max_prefill_chunk_len=1")


@pytest.fixture(scope="module")
def slow_pair(tmp_path_factory):
    with tiny_pair(tmp_path_factory.mktemp("leaving"), "float32", *SLOW) as pair:
        yield pair


@contextmanager
def asking(node: NodeProcess, **body):
    """A client with one request out; it leaves at the end."""
    host, _, port = node.http.rpartition(":")
    data = json.dumps({"temperature": 0, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode() + data)
        yield client


def metric(node: NodeProcess, name: str, label: str = "") -> float:
    return read(get(f"http://{node.http}", "/metrics")[1])[name, label]


def num_running(node: NodeProcess) -> int:
    return generations(f"http://{node.http}")["running"]


def num_sessions(node: NodeProcess) -> float:
    return metric(node, "sessions")


@pytest.fixture
def left(slow_pair):
    """The pair; afterwards nothing of the clients that left is there, on either node."""
    attic, cellar = slow_pair.attic, slow_pair.cellar
    eventually(lambda: num_sessions(cellar) == 0)
    closed = metric(cellar, "sessions_closed_total", "closed")
    cancelled = metric(attic, "request_seconds_count", "cancelled")
    yield slow_pair
    eventually(lambda: generations(f"http://{attic.http}") == {"running": 0, "waiting": 0})
    eventually(lambda: num_sessions(cellar) == 0)
    assert metric(cellar, "session_bytes") == 0
    assert metric(attic, "request_seconds_count", "cancelled") > cancelled
    # Not left to idle out.
    assert metric(cellar, "sessions_closed_total", "closed") > closed
    assert metric(cellar, "sessions_closed_total", "idle") == 0
    said = metric(attic, "generation_tokens_total")
    assert len(hear(attic.grpc, text="x", raw=True, max_tokens=3).ids) == 3  # a place is free
    assert metric(attic, "generation_tokens_total") == said + 3


LONG = {"prompt": "def f(x):\n", "max_tokens": 1900}


@pytest.mark.spec("H-10", "D-25")
def test_in_the_queue(left):
    attic = left.attic
    with asking(attic, **LONG, stream=True) as first:
        assert first.recv(8)
        with asking(attic, **LONG):
            eventually(lambda: generations(f"http://{attic.http}")["waiting"] == 1)
        eventually(lambda: generations(f"http://{attic.http}")["waiting"] == 0)
        assert num_running(attic) == 1  # the other goes on
        eventually(lambda: num_sessions(left.cellar) == 1)


@pytest.mark.spec("H-10", "D-25")
def test_in_the_prefill(left):
    prompt = "".join(held_out(8, seed=9))
    with asking(left.attic, prompt=prompt, max_tokens=5):
        eventually(lambda: num_running(left.attic) == 1)
        before = metric(left.attic, "generation_tokens_total")
        eventually(lambda: num_sessions(left.cellar) == 1)
    eventually(lambda: num_running(left.attic) == 0)
    assert metric(left.attic, "generation_tokens_total") == before


@pytest.mark.spec("H-10", "D-25")
@pytest.mark.parametrize("stream", [True, False])
def test_in_the_answer(left, stream):
    before = metric(left.attic, "generation_tokens_total")
    with asking(left.attic, **LONG, stream=stream):
        eventually(lambda: metric(left.attic, "generation_tokens_total") > before + 5)
        eventually(lambda: num_sessions(left.cellar) == 1)
    eventually(lambda: num_running(left.attic) == 0)
    assert metric(left.attic, "generation_tokens_total") < before + LONG["max_tokens"]
