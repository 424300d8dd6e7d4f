"""Hosts that die, clients that leave, signals in the middle of a generation."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest

from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from tests.cli.nodes import KAKEYA, environment, eventually, fleet_view, run_kakeya, running_node
from tests.interop.grpcio_peer import generate
from tests.live.client import Heard, hear
from tests.live.conftest import QUICK

PROMPT = "one two three, one two three, one two three, "


class Hearing(threading.Thread):
    """A generation that goes on while the test does something else."""

    def __init__(self, address: str, **request) -> None:
        super().__init__(daemon=True)
        self.heard = Heard()
        self._address, self._request = address, request
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            hear(self._address, on_event=self._take, **self._request)
        except grpc.RpcError as error:
            self.error = error

    def _take(self, heard: Heard) -> None:
        self.heard = heard


def is_closed(host: str, port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex((host, port)) != 0


def cellar_of(home, attic):
    return running_node(
        home, *QUICK, "--verifier", "none", "--node-id", "cellar", "--peer", attic.grpc
    )


def test_kill_9_of_the_drafting_node_in_mid_generation_and_its_return(slow_folder, tmp_path):
    verifying = ("--verifier", str(slow_folder), "--node-id", "attic")
    with running_node(tmp_path, *QUICK, *verifying) as attic:
        plain = hear(attic.grpc, text=PROMPT, max_tokens=300, plain=True)
        hearing = Hearing(attic.grpc, text=PROMPT, max_tokens=6000, draft_on="cellar", num_drafts=2)
        with cellar_of(tmp_path, attic) as cellar:
            eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))
            hearing.start()
            eventually(lambda: hearing.heard.drafted_on.count("cellar") > 5)
            at_kill = len(hearing.heard.ids)
            cellar.kill()
        assert at_kill < 250, "the kill came too late to show anything"
        eventually(lambda: "attic" in hearing.heard.drafted_on)
        with cellar_of(tmp_path, attic):
            before = len(hearing.heard.drafted_on)
            eventually(lambda: "cellar" in hearing.heard.drafted_on[before + 1 :])
            assert hearing.is_alive(), hearing.error  # it went on all the while
        eventually(lambda: len(hearing.heard.ids) >= 300)
        assert hearing.heard.ids[:300] == plain.ids
        assert max(hearing.heard.waits_s[1:]) < 2


def test_a_generation_whose_drafter_dies_counts_its_fallbacks(slow_folder, tmp_path):
    verifying = ("--verifier", str(slow_folder), "--node-id", "attic")
    with running_node(tmp_path, *QUICK, *verifying) as attic:
        plain = hear(attic.grpc, text=PROMPT, max_tokens=300, plain=True)
        with cellar_of(tmp_path, attic) as cellar:
            eventually(lambda: fleet_view(attic, tmp_path).get("cellar", {}).get("models"))

            def kill_once_it_drafts(heard: Heard) -> None:
                if cellar.process.poll() is None and heard.drafted_on.count("cellar") > 5:
                    cellar.kill()

            heard = hear(
                attic.grpc, on_event=kill_once_it_drafts,
                text=PROMPT, max_tokens=300, draft_on="cellar", num_drafts=2,
            )  # fmt: skip
            assert cellar.process.poll() is not None
        assert heard.ids == plain.ids
        assert sum(heard.fallbacks.values()) >= 1


@pytest.fixture(scope="module")
def single(slow_folder, tmp_path_factory):
    """A node that decodes one generation at a time."""
    home = tmp_path_factory.mktemp("single")
    one = ("--set", "node.max_generations=1", "--set", "node.max_waiting_generations=1")
    with running_node(home, *QUICK, "--verifier", str(slow_folder), *one) as node:
        hear(node.grpc, text="a", max_tokens=1)
        yield node, home


@pytest.mark.spec("N-08")
def test_a_command_that_is_killed_makes_room_at_once(single):
    node, home = single
    command = subprocess.Popen(
        [*KAKEYA, "generate", PROMPT, "--max-tokens", "7000", "--plain", "--node", node.grpc],
        env=environment(home),
        stdout=subprocess.PIPE,
    )
    assert command.stdout is not None
    assert command.stdout.read(8)  # it streams
    command.kill()
    command.wait()
    command.stdout.close()
    started_s = time.monotonic()
    hear(node.grpc, text="a", max_tokens=2)  # would wait for the first one's 7000 tokens
    assert time.monotonic() - started_s < 5


@pytest.mark.spec("N-08")
def test_one_generation_too_many_is_refused_while_others_wait(single):
    node, _ = single
    with grpc.insecure_channel(node.grpc) as channel:
        request = pb.GenerateRequest(text=PROMPT, max_tokens=7000, plain=True)
        running = generate(channel)(request, timeout=60)
        next(running)
        waiting = generate(channel)(request, timeout=60)
        # Calls that arrive together are served in any order, and this one has to wait first.
        time.sleep(0.2)

        def refused() -> bool:
            try:
                next(generate(channel)(request, timeout=2))
            except grpc.RpcError as error:
                return error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

        eventually(refused)
        running.cancel()
        assert next(waiting).ids  # its turn came
        waiting.cancel()


def test_two_generations_at_once_give_the_ids_of_each_alone(pair):
    asked = [{"text": text, "max_tokens": 150, "num_drafts": 4} for text in (PROMPT, "안녕, 안녕")]
    alone = [hear(pair.attic.grpc, plain=True, **request) for request in asked]
    both = [Hearing(pair.attic.grpc, **request) for request in asked * 2]
    for hearing in both:
        hearing.start()
    for hearing in both:
        hearing.join(60)
    assert [h.heard.ids for h in both] == [a.ids for a in alone * 2]


@pytest.mark.spec("N-02")
def test_sigterm_lets_a_generation_end_and_exits_0(slow_folder, tmp_path):
    with running_node(tmp_path, *QUICK, "--verifier", str(slow_folder)) as node:
        plain = hear(node.grpc, text=PROMPT, max_tokens=100, plain=True)
        hearing = Hearing(node.grpc, text=PROMPT, max_tokens=100, plain=True)
        hearing.start()
        eventually(lambda: len(hearing.heard.ids) > 2)
        assert node.end(signal.SIGTERM) == 0
        hearing.join(10)
        assert hearing.error is None
        assert hearing.heard.ids == plain.ids


@pytest.mark.spec("N-02")
def test_a_second_sigint_ends_it_at_once(slow_folder, tmp_path):
    with running_node(tmp_path, *QUICK, "--verifier", str(slow_folder)) as node:
        hearing = Hearing(node.grpc, text=PROMPT, max_tokens=7000, plain=True)
        hearing.start()
        eventually(lambda: len(hearing.heard.ids) > 2)
        node.process.send_signal(signal.SIGINT)
        host, _, port = node.grpc.rpartition(":")
        eventually(lambda: is_closed(host, int(port)))  # it drains
        started_s = time.monotonic()
        assert node.end(signal.SIGINT) == 130
        assert time.monotonic() - started_s < 5  # a drain may take 10
        hearing.join(10)


@pytest.mark.spec("N-10")
def test_without_a_node_named_the_local_port_is_asked_else_a_node_of_its_own(
    pair, folder, tmp_path
):
    want = hear(pair.attic.grpc, text=PROMPT, max_tokens=20, plain=True)
    port = pair.attic.grpc.rpartition(":")[2]
    asked = ("generate", PROMPT, "--max-tokens", "20", "--verifier")
    there = run_kakeya(*asked, "none", "--port", port, home=tmp_path)  # none: it has to ask
    own = run_kakeya(*asked, str(folder), "--port", "1", home=tmp_path)
    for done in (there, own):
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip("\n") == want.text.rstrip("\n")
