"""What /metrics says, by its definitions."""

from __future__ import annotations

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kakeya.config.node import NodeLimits
from kakeya.config.settings import Settings
from kakeya.metrics import FAMILIES, MAX_LABELS, PREFIX, Metrics
from tests.http.world import chat_body, world


def read(text: bytes) -> dict[tuple[str, str], float]:
    """Samples by name (without the prefix) and by the values of their labels."""
    return {
        (sample.name.removeprefix(PREFIX), ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def scraped(there) -> dict[tuple[str, str], float]:
    answer = await there.client().ask("GET", "/metrics")
    assert answer.fields["content-type"].startswith("text/plain; version=0.0.4")
    return read(answer.body)


@pytest.mark.spec("H-18")
def test_every_metric_is_there_before_first_use_and_at_zero():
    found = read(Metrics(version="1").exposition())
    for family in FAMILIES:
        ending = "_count" if family.kind == "histogram" else ""
        for value in family.values or ([] if family.label else [""]):
            assert found[family.name + ending, value] == 0, family.name
    assert [key for key in found if "_created" in key[0]] == []
    [(info, value)] = [(label, v) for (name, label), v in found.items() if name == "build_info"]
    assert value == 1
    assert info.startswith("1, Python 3.")


@pytest.mark.spec("H-18")
def test_names_and_kinds_follow_prometheus_manners():
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert len(family.values) <= MAX_LABELS
        assert (family.kind == "histogram") == bool(family.buckets)


@pytest.mark.spec("H-18")
def test_acceptance_is_counted_by_its_definition():
    metrics = Metrics(version="1")
    blocks = [(4, 4), (4, 1), (2, 0), (8, 3)]
    for num_drafts, num_accepted in blocks:
        metrics.add_drafts(num_drafts, num_accepted)
    found = read(metrics.exposition())
    drafts = found["spec_decode_num_drafts_total", ""]
    accepted = found["spec_decode_num_accepted_tokens_total", ""]
    assert 1 + accepted / drafts == 1 + 8 / 4
    assert found["spec_decode_num_draft_tokens_total", ""] == 18
    for position in range(16):
        offered_at = sum(num_drafts > position for num_drafts, _ in blocks)
        accepted_at = sum(num_accepted > position for _, num_accepted in blocks)
        label = str(position)
        assert found["spec_decode_num_draft_tokens_per_pos_total", label] == offered_at
        assert found["spec_decode_num_accepted_tokens_per_pos_total", label] == accepted_at


@pytest.mark.spec("H-18")
def test_a_label_from_outside_has_a_bounded_number_of_values():
    metrics = Metrics(version="1")
    many = {f'node "{i}"\n': float(i) for i in range(1000)}
    metrics.pull_from(lambda: {"peer_rtt_seconds": many, "peers": {"strange": 3.0}})
    found = read(metrics.exposition())
    assert sum(name == "peer_rtt_seconds" for name, _ in found) == MAX_LABELS
    assert ("peers", "strange") not in found
    metrics.add_drafts(1000, 1000)
    positions = [
        n for n, _ in read(metrics.exposition()) if n.endswith("accepted_tokens_per_pos_total")
    ]
    assert len(positions) == MAX_LABELS


@pytest.mark.spec("H-18")
async def test_the_metrics_agree_with_the_answers(autojump_clock):
    async with world() as there:
        answers = [
            (await there.client().complete(prompt="abcabcabc", max_tokens=count)).json
            for count in (30, 1, 12)
        ]
        found = await scraped(there)
        usages = [answer["usage"] for answer in answers]
        timings = [answer["timings"] for answer in answers]
        assert found["generation_tokens_total", ""] == 43
        assert found["prompt_tokens_total", ""] == 27 == sum(u["prompt_tokens"] for u in usages)
        cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
        assert found["prompt_tokens_cached_total", ""] == 2 * 8 == cached
        assert found["spec_decode_num_draft_tokens_total", ""] == sum(t["draft_n"] for t in timings)
        accepted = sum(t["draft_n_accepted"] for t in timings)
        assert found["spec_decode_num_accepted_tokens_total", ""] == accepted
        assert found["request_seconds_count", "length"] == 3
        assert found["time_to_first_token_seconds_count", ""] == 3
        # Every id but those of each first hand-out.
        firsts = 43 - found["inter_token_seconds_count", ""]
        assert 3 <= firsts <= 3 * 17
        decode_s = sum(t["predicted_ms"] for t in timings) / 1000
        parts = sum(
            found[f"{name}_seconds_sum", ""] for name in ("draft", "verify", "round_overhead")
        )
        assert parts == pytest.approx(decode_s, abs=1e-3)


@pytest.mark.spec("H-18")
async def test_every_end_of_a_request_has_its_outcome(autojump_clock):
    one = Settings(node=NodeLimits(max_generations=1, max_waiting_generations=0))
    bad = {"nan_rows": lambda position, num_rows: position > 40}
    async with world(settings=one, step_s=lambda rows: 0.1, **bad) as there:
        await there.client().chat(max_tokens=3)  # length
        await there.client().chat(max_tokens=60)  # failed: not finite
        await there.client().complete(prompt="a" * 5000)  # refused: too long
        leaving = there.client()
        await leaving.send("POST", "/v1/chat/completions", chat_body(max_tokens=30, stream=True))
        await trio.sleep(0.5)
        assert (await there.client().chat()).status == 429  # refused
        await leaving.leave()
        await trio.sleep(1)
        found = await scraped(there)
        counts = {
            o: found["request_seconds_count", o]
            for o in ("length", "failed", "refused", "cancelled", "stop")
        }
        assert counts == {"length": 1, "failed": 1, "refused": 2, "cancelled": 1, "stop": 0}


async def test_speculation_enabled_tells_whether_drafting_goes_on(autojump_clock):
    off = Settings(num_drafts=0)
    async with world() as there:
        await there.client().chat()
        assert (await scraped(there))["speculation_enabled", ""] == 1
    async with world(settings=off) as there:
        await there.client().chat()
        assert (await scraped(there))["speculation_enabled", ""] == 0
