from __future__ import annotations

import pytest

from kakeya.doctor.finding import is_well
from kakeya.doctor.packages import (
    backend_findings,
    package_findings,
    pins_of,
    python_finding,
    required_by,
)
from kakeya.node.backend import Host

PINS = "# exact versions\ntrio==0.33.0\nh11==0.16.0  # the door\ntyping_extensions==4.15.0\n"
WHOLE = {"trio": "0.33.0", "h11": "0.16.0", "typing-extensions": "4.15.0"}


@pytest.mark.spec("N-13")
@pytest.mark.parametrize(("version", "state"), [((3, 11, 7), "ok"), ((3, 10, 2), "failed")])
def test_an_old_python_is_named_with_the_one_needed(version, state):
    found = python_finding(version)
    assert (found.state, found.check) == (state, "python")
    assert bool(found.do) == (state == "failed")


def test_pins_are_read_with_their_comments_and_spelt_as_indexes_do():
    assert pins_of(PINS) == WHOLE


def test_what_a_node_needs_is_what_no_extra_asks_for():
    lines = ["trio", "purerpc==0.8.0", "typing_extensions>=4", "torch; extra == 'torch'"]
    assert required_by(lines) == ["purerpc", "trio", "typing-extensions"]


@pytest.mark.spec("N-13")
def test_a_missing_package_fails_and_another_version_is_warned_of():
    found = package_findings(
        sorted(WHOLE), {"trio": "0.32.0", "h11": "0.16.0+local"}, pins_of(PINS)
    )
    assert [(each.check, each.state) for each in found] == [
        ("package typing-extensions", "failed"),
        ("package trio", "warning"),
        ("packages", "ok"),
    ]
    assert found[1].what == "0.32.0, tested with 0.33.0"
    assert all(each.do for each in found[:2])
    assert found[2].what.startswith("1 of 3")
    assert is_well(package_findings(sorted(WHOLE), WHOLE, pins_of(PINS)))


@pytest.mark.spec("N-13")
def test_a_verifier_without_its_library_fails_and_a_node_without_one_does_not():
    bare = Host(frozenset(), is_apple_silicon=False)
    (missing,) = backend_findings({}, host=bare, asked="auto", verifier="smollm2", num_cores=2)
    assert (missing.check, missing.state) == ("backend", "failed")
    assert "torch is not installed" in missing.what
    assert backend_findings({}, host=bare, asked="auto", verifier="none", num_cores=2) == []


@pytest.mark.spec("N-13", "N-21")
@pytest.mark.parametrize(
    ("asked", "state", "what"),
    [("auto", "ok", "auto is mlx"), ("torch", "failed", "backend torch is not installed here")],
)
def test_the_backend_that_a_node_would_choose_is_named(asked, state, what):
    mac = Host(frozenset({"mlx"}), is_apple_silicon=True)
    found = backend_findings({"mlx": "0.32.4"}, host=mac, asked=asked, verifier="tiny", num_cores=2)
    assert found[0].what == "0.32.4, Metal"
    assert (found[1].check, found[1].state) == ("backend", state)
    assert what in found[1].what
