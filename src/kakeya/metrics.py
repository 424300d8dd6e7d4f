"""Every metric of a node: what it counts, its labels and what they may say.

A registry of its own; nothing here knows where the numbers come from.  Pushed: told as things
happen.  Pulled: asked for when somebody reads, from whoever counts already.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kakeya.errors import STATUS_NAMES

PREFIX = "kakeya_"
# Labels whose values come from outside are cut here: a fleet is a handful of nodes.
MAX_LABELS = 64
# A draft's position, counted from 0: as many as decoding.max_num_drafts is by default.
POSITIONS = tuple(str(position) for position in range(16))
OUTCOMES = ("stop", "length", "cancelled", "refused", "failed")
FALLBACKS = ("late", "malformed", "unseeded", *(name.lower() for name in STATUS_NAMES[1:]))
SESSION_ENDINGS = ("closed", "idle", "life", "restore_failed", "stopped", "crashed")
GOSSIP_RESULTS = ("ok", "failed")
PEER_STATES = ("reachable", "unreachable")

Kind = Literal["counter", "gauge", "histogram"]
# By metric, by the value of its label ("" without one).
Pulled = Mapping[str, Mapping[str, float]]

# One-token steps take 2 ms on a large accelerator and a second on a small CPU.
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# Queue and prefill included.
REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.  label: its only one, "" for none; values: those that are there from the start.

    is_open: further values may come, at most MAX_LABELS in all.
    """

    name: str
    kind: Kind
    about: str
    label: str = ""
    values: tuple[str, ...] = ()
    is_open: bool = False
    is_pulled: bool = False
    buckets: tuple[float, ...] = ()


def _step(name: str, about: str) -> Family:
    return Family(name, "histogram", about, buckets=STEP_BUCKETS)


def _pulled(name: str, kind: Kind, about: str, label: str = "", *values: str) -> Family:
    return Family(name, kind, about, label, values, is_open=False, is_pulled=True)


def _by_peer(name: str, about: str) -> Family:
    return Family(name, "gauge", about, "peer", is_open=True, is_pulled=True)


# Spec: specs/http.md carries the same list; a test compares the two.
FAMILIES: tuple[Family, ...] = (
    Family("spec_decode_num_drafts_total", "counter", "Blocks that were drafted."),
    Family("spec_decode_num_draft_tokens_total", "counter", "Ids that were drafted."),
    Family("spec_decode_num_accepted_tokens_total", "counter", "Drafted ids that were accepted."),
    Family(
        "spec_decode_num_draft_tokens_per_pos_total", "counter",
        "Blocks that offered a draft at this position.", "position", POSITIONS, is_open=True,
    ),
    Family(
        "spec_decode_num_accepted_tokens_per_pos_total", "counter",
        "Blocks whose draft at this position was accepted.", "position", POSITIONS, is_open=True,
    ),
    _step("draft_seconds", "Time a round waited for its drafts."),
    _step("verify_seconds", "Time a round's forward pass took, its turn included."),
    _step("round_overhead_seconds", "Time of a round that was neither drafting nor verifying."),
    _by_peer("peer_rtt_seconds", "Median round trip of a draft, by peer."),
    Family(
        "time_to_first_token_seconds", "histogram", "From the request to its first ids.",
        buckets=REQUEST_BUCKETS,
    ),
    _step("inter_token_seconds", "Time between hand-outs, shared among the ids of the later one."),
    Family(
        "request_seconds", "histogram", "From the request to its end, by outcome.", "outcome",
        OUTCOMES, buckets=REQUEST_BUCKETS,
    ),
    _pulled("requests_running", "gauge", "Generations that have a place."),
    _pulled("requests_waiting", "gauge", "Generations that wait for a place."),
    Family("prompt_tokens_total", "counter", "Ids of prompts."),
    Family(
        "prompt_tokens_cached_total", "counter", "Those whose K/V was kept from an earlier prompt."
    ),
    _pulled("kept_prefixes", "gauge", "Prompts whose K/V is kept for those that begin alike."),
    _pulled("kept_prefix_bytes", "gauge", "Bytes of their K/V."),
    Family("generation_tokens_total", "counter", "Ids handed out."),
    _pulled("sessions", "gauge", "Drafting sessions open here for other nodes."),
    _pulled("session_bytes", "gauge", "Bytes they have reserved."),
    _pulled("sessions_closed_total", "counter", "Sessions ended.", "reason", *SESSION_ENDINGS),
    Family(
        "draft_fallbacks_total", "counter", "Drafts asked for and not had.", "reason", FALLBACKS
    ),
    Family(
        "speculation_enabled", "gauge", "1 while the generation that spoke last may draft."
    ),
    Family("margin_rechecks_total", "counter", "Choices made again by a one-token pass."),
    _pulled("peers", "gauge", "Other nodes whose cards are held.", "state", *PEER_STATES),
    _pulled("gossip_rounds_total", "counter", "Exchanges begun here.", "result", *GOSSIP_RESULTS),
    Family(
        "cards_rejected_total", "counter", "Cards not taken.", "reason", is_open=True,
        is_pulled=True,
    ),
    _by_peer("clock_skew_seconds", "A peer's clock minus ours at the last probe."),
    Family("loop_lag_seconds", "histogram", "How late the event loop ran a timer.",
           buckets=LAG_BUCKETS),
    Family("build_info", "gauge", "1, with the version as its label.", "version", is_open=True),
)  # fmt: skip


class Metrics:
    """The registry of one node."""

    def __init__(self, *, version: str) -> None:
        # The library would add a second series to each, of when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._pull: Callable[[], Pulled] = dict
        pushed = [family for family in FAMILIES if not family.is_pulled]
        self._counters = {f.name: _counter(f, self.registry) for f in pushed if f.kind == "counter"}
        self._gauges = {f.name: _gauge(f, self.registry) for f in pushed if f.kind == "gauge"}
        self._histograms = {
            f.name: _histogram(f, self.registry) for f in pushed if f.kind == "histogram"
        }
        self._gauges["build_info"].labels(f"{version}, Python {platform.python_version()}").set(1)
        self.registry.register(_Pulling(lambda: self._pull()))

    def pull_from(self, pull: Callable[[], Pulled]) -> None:
        """Whom to ask for the pulled ones, at every reading; it must be quick and not raise."""
        self._pull = pull

    def exposition(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter; `label` is a value its family names."""
        counter = self._counters[name]
        (counter.labels(label) if label else counter).inc(amount)

    def observe(self, name: str, value: float, label: str = "", times: int = 1) -> None:
        histogram = self._histograms[name]
        child = histogram.labels(label) if label else histogram
        for _ in range(times):
            child.observe(value)

    def set(self, name: str, value: float) -> None:
        self._gauges[name].set(value)

    def add_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """One block that was drafted: per position, those that offered it and had it accepted.

        Mean acceptance length is 1 + accepted tokens / drafts.
        """
        self.count("spec_decode_num_drafts_total")
        self.count("spec_decode_num_draft_tokens_total", num_drafts)
        self.count("spec_decode_num_accepted_tokens_total", num_accepted)
        for position in range(min(num_drafts, MAX_LABELS)):
            label = str(position)
            self.count("spec_decode_num_draft_tokens_per_pos_total", 1, label)
            if position < num_accepted:
                self.count("spec_decode_num_accepted_tokens_per_pos_total", 1, label)


class _Pulling(Collector):
    """Asks for the pulled ones when somebody reads."""

    def __init__(self, pull: Callable[[], Pulled]) -> None:
        self._pull = pull

    def collect(self) -> Iterable[Metric]:
        found = self._pull()
        return [
            _sampled(family, found.get(family.name, {})) for family in FAMILIES if family.is_pulled
        ]

    def describe(self) -> Iterable[Metric]:
        return []


def _sampled(family: Family, found: Mapping[str, float]) -> Metric:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric: Metric = make(
        PREFIX + family.name, family.about, labels=[family.label] if family.label else None
    )
    if not family.label:
        metric.add_metric([], found.get("", 0.0))  # type: ignore[attr-defined]
        return metric
    others = sorted(set(found) - set(family.values)) if family.is_open else []
    for value in [*family.values, *others][:MAX_LABELS]:
        metric.add_metric([value], found.get(value, 0.0))  # type: ignore[attr-defined]
    return metric


def _labels(family: Family) -> list[str]:
    return [family.label] if family.label else []


def _counter(family: Family, registry: CollectorRegistry) -> Counter:
    made = Counter(PREFIX + family.name, family.about, _labels(family), registry=registry)
    for value in family.values:
        made.labels(value)
    return made


def _gauge(family: Family, registry: CollectorRegistry) -> Gauge:
    return Gauge(PREFIX + family.name, family.about, _labels(family), registry=registry)


def _histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    made = Histogram(
        PREFIX + family.name,
        family.about,
        _labels(family),
        registry=registry,
        buckets=family.buckets,
    )
    for value in family.values:
        made.labels(value)
    return made


__all__ = ["FAMILIES", "MAX_LABELS", "PREFIX", "Family", "Metrics", "Pulled"]
