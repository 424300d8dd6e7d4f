from __future__ import annotations

import pytest

from kakeya.doctor.places import address_findings, candidates, port_finding
from kakeya.rpc.listener import open_listeners

INTERFACES = {
    "lo": ["127.0.0.1", "::1"],
    "docker0": ["172.17.0.1"],
    "eth0": ["fe80::1%eth0", "10.0.0.1", "fd00::5"],
    "tailscale0": ["100.64.0.7"],
}


@pytest.mark.spec("N-13")
def test_candidates_are_what_others_can_reach_and_bridges_come_last():
    assert candidates(INTERFACES) == ["10.0.0.1", "100.64.0.7", "fd00::5", "172.17.0.1"]


@pytest.mark.spec("N-13")
@pytest.mark.parametrize(
    ("host", "advertise", "source", "state", "told"),
    [
        ("0.0.0.0", "", "10.0.0.1", "ok", "10.0.0.1:50051"),
        ("::", "", "fd00::5", "ok", "[fd00::5]:50051"),
        ("0.0.0.0", "node.example:7", "10.0.0.1", "ok", "node.example:7"),
        ("127.0.0.1", "", "127.0.0.1", "ok", "127.0.0.1:50051"),
        ("127.0.0.1", "", "10.0.0.1", "failed", "leads the peer to itself"),
        ("0.0.0.0", "", "", "failed", "no route"),
    ],
)
def test_the_address_for_a_peer_is_the_one_on_the_route_to_it(host, advertise, source, state, told):
    found = address_findings(
        host=host, port=50051, advertise=advertise, interfaces=INTERFACES,
        routes={"10.0.0.2:50051": source},
    )  # fmt: skip
    assert "10.0.0.1, 100.64.0.7" in found[0].what
    assert found[1].state == state
    assert told in found[1].what
    assert bool(found[1].do) == (state == "failed")


@pytest.mark.spec("N-13")
async def test_a_port_in_use_fails_and_is_free_again_afterwards():
    (listener,) = await open_listeners("127.0.0.1", 0)
    port = listener.socket.getsockname()[1]

    async def look(*, is_ours=False):
        return await port_finding("p", "127.0.0.1", port, flag="--port", is_ours=is_ours)

    found = await look()
    assert found.state == "failed"
    assert f"port {port}" in found.what
    assert "--port" in found.do
    assert (await look(is_ours=True)).state == "ok"
    listener.socket.close()
    assert (await look()).state == "ok"
    assert (await look()).state == "ok"  # looking does not take it
