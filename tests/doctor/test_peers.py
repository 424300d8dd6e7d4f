from __future__ import annotations

from dataclasses import replace

import pytest

from kakeya.doctor.peers import Ours, Seen, peer_findings

OURS = Ours("0.1.0", "kakeya", "attic", "10.0.0.1:50051", ttl_s=120.0)
GOOD = Seen(
    "10.0.0.2:50051",
    status="OK",
    node_id="cellar",
    skew_s=0.2,
    rtt_s=0.001,
    version="0.1.0",
    fleet_name="kakeya",
    knows_us=True,
    reaches_us=True,
)


@pytest.mark.spec("N-13")
def test_a_peer_in_order_has_a_line_for_each_thing_looked_at():
    found = peer_findings(GOOD, OURS)
    assert {each.state for each in found} == {"ok"}
    assert [each.check.partition(", ")[2] for each in found] == [
        "TLS", "from here", "fleet name", "version", "clock", "to here",
    ]  # fmt: skip


@pytest.mark.spec("N-13")
@pytest.mark.parametrize(
    ("changes", "check", "state", "advice"),
    [
        ({"dial_error": "no answer within 3 s"}, "from here", "failed", "firewall"),
        ({"dial_error": "Connection refused"}, "from here", "failed", "nothing listens"),
        ({"dial_error": "Name or service not known"}, "from here", "failed", "name is not known"),
        ({"dial_error": "No route to host"}, "from here", "failed", "Local Network"),
        ({"dial_error": "TLS failed: no handshake"}, "TLS", "failed", "kakeya cert"),
        (
            {"status": "FAILED_PRECONDITION", "why": "fleet 'b'"},
            "fleet name",
            "failed",
            "--fleet-n",
        ),
        ({"status": "UNAUTHENTICATED", "why": "no key"}, "key", "failed", "--fleet-key-file"),
        ({"status": "UNIMPLEMENTED", "why": "no"}, "from here", "failed", "something else"),
        ({"status": "UNAVAILABLE", "why": "closed"}, "from here", "failed", "--tls-cert"),
        ({"status": "UNAVAILABLE", "has_tls": True}, "from here", "failed", "is it a node"),
        ({"version": "0.0.9"}, "version", "warning", "update"),
        ({"version": ""}, "version", "skipped", ""),
        ({"skew_s": -31.0}, "clock", "warning", "NTP"),
        ({"skew_s": 600.0}, "clock", "warning", "NTP"),
        ({"skew_s": -5.0}, "clock", "ok", ""),
        ({"knows_us": None}, "to here", "skipped", ""),
        ({"knows_us": False}, "to here", "failed", "--peer"),
        ({"reaches_us": False}, "to here", "failed", "--advertise"),
    ],
)
def test_each_trouble_has_its_line_and_what_to_do(changes, check, state, advice):
    found = peer_findings(replace(GOOD, **changes), OURS)
    (line,) = [each for each in found if each.check.endswith(f", {check}")]
    assert line.state == state
    assert advice in line.do
    assert bool(line.do) == (state in ("failed", "warning"))
    assert {each.state for each in found if each is not line} <= {"ok"}


@pytest.mark.spec("N-13")
def test_without_a_node_here_nobody_is_asked_whether_it_reaches_one():
    found = peer_findings(GOOD, replace(OURS, node_id=""))
    assert (found[-1].state, found[-1].do) == ("skipped", "")
