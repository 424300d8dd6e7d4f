"""What passes between a verifier and its drafter, and the drafter's kill -9 in each call."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest

from kakeya.cli.bench_prompts import held_out
from tests.cli.nodes import NodeProcess, eventually, fleet_view, running_node
from tests.live.client import Heard, hear
from tests.live.promise import drafters_of
from tests.live.wiretap import Wiretap, wiretap

QUICK = ("--fleet-interval", "0.2", "--fleet-ttl", "6", "--log-format", "json")
ASKED = {"text": held_out(1, seed=8)[0], "raw": True, "max_tokens": 1500}
DRAFTED = {**ASKED, "num_drafts": 7, "proposer": "tiny"}


def attic_of(home: Path):
    return running_node(home, *QUICK, "--verifier", "tiny", "--node-id", "attic")


def cellar_of(home: Path, peer: str, tap: Wiretap):
    """It drafts, and is reached through `tap` alone."""
    return running_node(
        home, *QUICK, "--verifier", "none", "--proposer", "tiny", "--node-id", "cellar",
        "--peer", peer, "--advertise", tap.address,
    )  # fmt: skip


def models_of(node: NodeProcess, home: Path) -> str:
    return str(fleet_view(node, home)[node.node_id]["models"])


def knows_drafter(attic: NodeProcess, home: Path) -> None:
    eventually(lambda: fleet_view(attic, home).get("cellar", {}).get("models"))
    eventually(lambda: "tiny" in drafters_of(attic.grpc))


@pytest.mark.spec("D-21")
def test_a_block_is_one_round_trip_with_the_rows_of_the_last_one_beside_it(tmp_path):
    with (
        wiretap() as tap,
        attic_of(tmp_path) as attic,
        cellar_of(tmp_path, attic.grpc, tap) as cellar,
    ):
        tap.target = cellar.grpc
        knows_drafter(attic, tmp_path)
        eventually(lambda: len(tap.asked("CloseSession")) == len(tap.asked("Restore")))
        tap.trace.clear()
        heard = hear(attic.grpc, **{**DRAFTED, "max_tokens": 400})
        eventually(lambda: tap.asked("CloseSession"))
    answered_s = {p.call: p.at_s for p in list(tap.trace) if p.what == "answered"}
    drafts, extends = tap.asked("DraftBlock"), tap.asked("ExtendContext")
    num_late = heard.fallbacks.get("late", 0)  # of a loaded machine
    assert len(drafts) == heard.drafters.count("tiny") + num_late > 10
    in_time = [draft for draft in drafts if draft.call in answered_s]
    assert len(in_time) >= len(drafts) - num_late
    for earlier, later in pairwise(in_time):
        assert answered_s[earlier.call] <= later.at_s, "one draft at a time"
    beside = [
        draft
        for draft in in_time
        if any(
            e.at_s <= answered_s[draft.call] and draft.at_s <= answered_s[e.call] for e in extends
        )
    ]
    # The first draft comes behind what was seeded; rows of a late one are fed without a draft.
    assert len(beside) >= len(in_time) - 1 - num_late


class Death:
    """Kills the drafter in the middle of a call, and lets another one take its place.

    returned_at, drafts_at: how many blocks had come when the new one was first asked for a
    session, and when it drafted.
    """

    def __init__(self, call: str, number: int, victim: NodeProcess) -> None:
        self.call, self.number, self.victim = call, number, victim
        self.is_dead = threading.Event()
        self.num_blocks = 0
        self.returned_at: int | None = None
        self.drafts_at: int | None = None

    def on_asked(self, method: str, number: int) -> None:
        if not self.is_dead.is_set():
            if (method, number) == (self.call, self.number):
                self.victim.kill()
                self.is_dead.set()
        elif method == "Restore" and self.returned_at is None:
            self.returned_at = self.num_blocks

    def hear(self, heard: Heard) -> None:
        self.num_blocks = len(heard.rounds)
        if self.returned_at is not None and self.drafts_at is None and heard.drafters:
            is_drafted = heard.rounds[-1][1] > 0
            self.drafts_at = (
                self.num_blocks if is_drafted and heard.drafters[-1] == "tiny" else None
            )


@pytest.fixture(scope="module")
def attic(tmp_path_factory):
    home = tmp_path_factory.mktemp("attic")
    with attic_of(home) as node:
        yield node, hear(node.grpc, plain=True, **ASKED).ids


@pytest.mark.spec("D-15", "D-22", "D-23")
@pytest.mark.parametrize("call", ["Restore", "SeedContext", "ExtendContext", "DraftBlock"])
def test_kill_9_of_the_drafter_in_any_call_costs_no_id_and_it_is_taken_back(call, attic, tmp_path):
    verifier, plain_ids = attic
    with (
        wiretap() as tap,
        wiretap() as gate,
        cellar_of(tmp_path, verifier.grpc, tap) as first,
        # Ready, but alone as long as the gate is shut: it has the other one's name.
        cellar_of(tmp_path / "second", gate.address, tap) as second,
    ):
        tap.target = first.grpc
        knows_drafter(verifier, tmp_path)
        eventually(lambda: "tiny" in models_of(second, tmp_path))
        tap.trace.clear()
        death = Death(call, 1 if call in ("Restore", "SeedContext") else 3, first)
        tap.on_asked = death.on_asked

        def come_back() -> None:
            death.is_dead.wait()
            tap.target, gate.target = second.grpc, verifier.grpc

        threading.Thread(target=come_back, daemon=True).start()
        heard = hear(verifier.grpc, on_event=death.hear, **DRAFTED)
        death.is_dead.set()
    assert first.process.poll() == -9
    assert heard.ids == plain_ids
    assert heard.fallbacks
    # How soon depends on the load of the machine; on the mock clock it is within 20 blocks.
    assert death.returned_at is not None, heard.fallbacks
    assert death.drafts_at is not None, heard.fallbacks
