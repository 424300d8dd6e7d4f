"""What a node's metrics ask for when somebody reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kakeya.config.settings import Settings
from kakeya.decoding import Place
from kakeya.metrics import FAMILIES, Metrics
from kakeya.node.gauges import measure_lag, pulled
from kakeya.node.parts import build_parts
from kakeya.node.seams import embedded_seams

PULLED = {family.name for family in FAMILIES if family.is_pulled}


@pytest.fixture
def parts():
    settings = Settings(verifier="none")
    return build_parts(settings, embedded_seams(settings))


@pytest.mark.spec("H-18")
async def test_every_pulled_metric_has_somebody_to_ask(parts):
    found = pulled(parts)
    assert set(found) == PULLED
    assert found["requests_running"] == {"": 0}
    assert found["peers"] == {"reachable": 0, "unreachable": 0}
    assert "future" in found["cards_rejected_total"]


async def test_a_round_trip_is_told_once_it_is_known(parts):
    place = Place("cellar", "there:1", "ngram")
    circuits = parts.peers.circuits
    parts = replace(parts, peers=replace(parts.peers, places=lambda: (place,)))
    assert pulled(parts)["peer_rtt_seconds"] == {}
    circuits.put(place, circuits.of(place).answered(1.0, 0.025))
    assert pulled(parts)["peer_rtt_seconds"] == {"cellar": 0.025}


async def test_a_timer_that_runs_late_is_seen(autojump_clock):
    metrics = Metrics(version="1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(measure_lag, metrics, 0.5)
        await trio.sleep(5.2)
        nursery.cancel_scope.cancel()
    families = text_string_to_metric_families(metrics.exposition().decode())
    [lag] = [family for family in families if family.name == "kakeya_loop_lag_seconds"]
    samples = {sample.name.removeprefix(lag.name): sample.value for sample in lag.samples}
    assert (samples["_count"], samples["_sum"]) == (10, 0)
