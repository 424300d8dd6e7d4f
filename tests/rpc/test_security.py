"""Who may call, and where it is safe to listen."""

from __future__ import annotations

import pytest

from kakeya.errors import Refused
from kakeya.rpc.endpoint import Call
from kakeya.rpc.security import (
    bind_trouble,
    demand_safe_bind,
    guarded_by,
    key_metadata,
    principal_of,
    read_fleet_key,
)
from tests.rpc.peers import ask, linked
from tests.rpc.test_calls import fails

KEY = "0123456789abcdef0123456789abcdef"


@pytest.mark.spec("R-16")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_this_machine_alone_is_safe_to_bind(host):
    demand_safe_bind(host, has_key=False, has_tls=False, is_insecure=False)


@pytest.mark.spec("R-16")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.2", "attic.local", "localhost.evil", ""])
def test_a_host_that_others_reach_needs_a_key_or_tls_or_insistence(host):
    ways = {"has_key": False, "has_tls": False, "is_insecure": False}
    with pytest.raises(Refused, match="insecure"):
        demand_safe_bind(host, **ways)
    for way in ways:
        assert bind_trouble(host, **{**ways, way: True}) == ""


@pytest.mark.spec("R-16")
async def test_calls_need_the_key(autojump_clock):
    async with linked(admit=guarded_by(KEY)) as pair:
        told = await fails(pair.stub.GetFleet(ask()))
        assert told[0] == "UNAUTHENTICATED"
        assert KEY not in told[1]
        wrong = [("authorization", f"Bearer {KEY[:-1]}0")]
        assert (await fails(pair.stub.GetFleet(ask(), metadata=wrong)))[0] == "UNAUTHENTICATED"
        answer = await pair.stub.GetFleet(ask(), metadata=key_metadata(KEY))
        assert answer.fleet_name == "hello"


@pytest.mark.spec("R-16")
def test_health_is_open_and_a_certificate_is_as_good_as_the_key():
    admit = guarded_by(KEY)
    admit(Call("grpc.health.v1.Health", "Check", (), "", "", 0.0))
    admit(Call("kakeya.v1.CapabilityService", "X", (), "", "cellar", 0.0))
    with pytest.raises(Refused):
        admit(Call("kakeya.v1.CapabilityService", "X", (), "", "", 0.0))


def test_a_call_does_not_show_its_metadata():
    assert KEY not in repr(Call("a", "b", key_metadata(KEY), "", "", 0.0))


def test_the_key_comes_from_its_file_before_the_environment(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    env = {"KAKEYA_FLEET_KEY": "e" * 32}
    assert read_fleet_key(str(file), env) == KEY
    assert read_fleet_key("", env) == "e" * 32
    assert read_fleet_key("", {}) == ""


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 32, b"x" * 2000])
def test_a_bad_key_file_is_refused_without_its_content(tmp_path, content):
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(Refused) as caught:
        read_fleet_key(str(file), {})
    assert "short" not in caught.value.why
    with pytest.raises(Refused):
        read_fleet_key(str(tmp_path / "missing"), {})


def test_a_certificate_names_its_bearer():
    subject = ((("commonName", "attic"),),)
    assert principal_of({"subject": subject}) == "attic"
    assert principal_of({"subject": subject, "subjectAltName": (("DNS", "cellar"),)}) == "cellar"
    assert principal_of(None) == ""
