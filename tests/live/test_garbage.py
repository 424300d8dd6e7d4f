"""Proposers that lie, fail, sleep or say nothing cost speed only."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.nodes import eventually, fleet_view, run_kakeya, running_node
from tests.live.client import hear
from tests.live.conftest import QUICK
from tests.live.garbage import announce, card_of, lying, silent

PROMPT = "one two three, one two three, one two three, "
ASKED = {"text": PROMPT, "max_tokens": 120}
WAYS = ["too few", "too many", "beyond the vocabulary", "wrong", "slow", "raises"]


@pytest.fixture(scope="module")
def alone(folder, tmp_path_factory):
    """A verifier of its own for this module, which hears of bad peers only."""
    home = tmp_path_factory.mktemp("alone")
    with running_node(home, *QUICK, "--verifier", str(folder), "--node-id", "attic") as node:
        hear(node.grpc, **ASKED, plain=True)  # the verifier is loaded
        yield node, home


def timed(address: str, **more):
    started_s = time.monotonic()
    heard = hear(address, **ASKED, **more)
    return heard, time.monotonic() - started_s


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("draft_on", ["liar", "auto"])
def test_a_bad_proposer_changes_no_id_and_ends_nothing(alone, how, draft_on):
    node, _ = alone
    plain, plain_s = timed(node.grpc, plain=True)
    with lying(how) as (port, liar):
        announce(node.grpc, card_of(port))
        forced = {"num_drafts": 4} if draft_on == "liar" else {}
        heard, heard_s = timed(node.grpc, draft_on=draft_on, **forced)
    assert heard.ids == plain.ids
    assert heard.finish_reason == plain.finish_reason == "length"
    assert max(heard.waits_s) < 2
    # Loose, because the machine may be loaded: what it rules out is waiting at every block.
    assert heard_s < 3 * plain_s + 3
    if draft_on == "liar":
        assert liar.asked > 0


def test_a_server_that_accepts_and_never_answers_changes_no_id(alone):
    node, home = alone
    plain, plain_s = timed(node.grpc, plain=True)
    with silent() as port:
        announce(node.grpc, card_of(port))
        eventually(lambda: "liar" in fleet_view(node, home))
        heard, heard_s = timed(node.grpc, draft_on="liar", num_drafts=4)
    assert heard.ids == plain.ids
    assert max(heard.waits_s) < 2
    assert heard_s < 3 * plain_s + 3


def test_the_command_ends_well_beside_a_bad_proposer_and_counts_what_went_wrong(alone):
    node, home = alone
    plain = hear(node.grpc, **ASKED, plain=True)
    with lying("too few") as (port, liar):
        announce(node.grpc, card_of(port))
        done = run_kakeya(
            "generate", PROMPT, "--json", "--max-tokens", "120", "--draft-on", "liar",
            "--num-drafts", "4", "--node", node.grpc, home=home,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ids"] == plain.ids
    assert liar.asked > 0
