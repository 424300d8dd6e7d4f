"""/fleet.json: the fleet, and what speculation brings."""

from __future__ import annotations

import pytest

from kakeya.fleet.card import ROLE_PROPOSER, ROLE_VERIFIER, Model
from kakeya.fleet.membership import NodeRow
from tests.http.world import world

ROW = NodeRow(
    node_id="attic", grpc_address="10.0.0.1:50051", age_s=1.23456, ttl_s=120.0, reachable=True,
    platform="linux-x86_64", memory_bytes=1 << 34, mlx_version="",
    models=(Model("toy", ROLE_VERIFIER, "float32", 13.3), Model("ngram", ROLE_PROPOSER, "none", 9)),
    clock_skew_s=0.0, conflict_address="", trouble="",
)  # fmt: skip


async def seen(there):
    answer = await there.client().ask("GET", "/fleet.json")
    assert answer.fields["cache-control"] == "no-store"
    return answer.json


@pytest.mark.spec("H-19")
async def test_the_overview_before_anything_happened(autojump_clock):
    async with world(is_loaded=False) as there:
        there.fleet.rows = [ROW]
        before = await seen(there)
        assert before["self"] == "attic"
        assert before["nodes"][0]["models"][1]["role"] == "proposer"
        assert before["verifier"] == {"model_id": "toy", "state": "loading", "backend": None}
        assert before["generations"] == {"running": 0, "waiting": 0}
        assert before["sessions"] == {"open": 0, "bytes": 0}
        speculation = before["speculation"]
        assert speculation["plain_tokens_per_second"] is None
        assert speculation["ratio"] is None
        assert speculation["mean_acceptance_length"] == 1
        assert speculation["acceptance_by_position"] == []


@pytest.mark.spec("H-19")
async def test_what_speculation_brings(autojump_clock):
    async with world() as there:
        client = there.client()
        answers = [(await client.complete(max_tokens=60)).json for _ in range(3)]
        view = await seen(there)
        assert view["verifier"]["state"] == "ready"
        speculation = view["speculation"]
        assert speculation["tokens"] == 180
        assert speculation["drafts"] == sum(a["timings"]["draft_n"] for a in answers)
        assert speculation["accepted"] == sum(a["timings"]["draft_n_accepted"] for a in answers)
        length = 1 + speculation["accepted"] / speculation["drafted_blocks"]
        assert speculation["mean_acceptance_length"] == pytest.approx(length, abs=1e-3)
        assert all(0 <= share <= 1 for share in speculation["acceptance_by_position"])
        # The toy's one-token step takes 75 ms, and its repetitive text gains by drafts.
        assert speculation["plain_tokens_per_second"] == pytest.approx(1 / 0.075, rel=0.01)
        assert speculation["ratio"] == pytest.approx(
            speculation["tokens_per_second"] * 0.075, rel=0.01
        )
        assert speculation["ratio"] > 1
