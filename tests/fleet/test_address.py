"""What may be dialled, and what goes on our own card."""

from __future__ import annotations

import pytest

from kakeya.fleet.address import Address, Listening, advertised, joined, kind_of, parse, reach_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("attic.local:50051", Address("attic.local", 50051)),
        ("10.0.0.2:1", Address("10.0.0.2", 1)),
        ("[::1]:50051", Address("::1", 50051)),
        ("[fd00::2%en0]:50051", Address("fd00::2%en0", 50051)),
        ("10.0.0.2", None),
        ("10.0.0.2:0", None),
        ("10.0.0.2:65536", None),
        ("10.0.0.2:-1", None),
        ("10.0.0.2:²", None),
        (":50051", None),
        ("::1:50051", None),
        ("http://attic:80", None),
        ("at tic:80", None),
        ("attic\n:80", None),
        ("a" * 254 + ":80", None),
        ("", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text, address):
    assert parse(text) == address
    if address and "[" in text:
        assert joined(address.host, address.port) == text


@pytest.mark.spec("F-14")
@pytest.mark.parametrize(
    ("address", "reach"),
    [
        ("10.0.0.2:50051", "far"),
        ("192.168.1.2:50051", "far"),
        ("100.64.0.2:50051", "far"),
        ("[fd00::2]:50051", "far"),
        ("attic.local:50051", "far"),
        ("node-1:50051", "far"),
        ("127.0.0.1:50051", "near"),
        ("127.9.9.9:50051", "near"),
        ("localhost:50051", "near"),
        ("[::1]:50051", "near"),
        ("[::ffff:127.0.0.1]:50051", "near"),
        ("169.254.169.254:80", "nowhere"),
        ("[fe80::1]:50051", "nowhere"),
        ("[fe80::1%eth0]:50051", "nowhere"),
        ("[::ffff:169.254.169.254]:80", "nowhere"),
        ("0xa9fea9fe:80", "nowhere"),
        ("2852039166:80", "nowhere"),
        ("169.254.43518:80", "nowhere"),
        ("0251.0376.0251.0376:80", "nowhere"),
        ("0.0.0.0:50051", "nowhere"),
        ("[::]:50051", "nowhere"),
        ("224.0.0.1:50051", "nowhere"),
        ("255.255.255.255:50051", "nowhere"),
        ("", "nowhere"),
        ("nonsense", "nowhere"),
    ],
)
def test_addresses_that_no_peer_can_have_are_not_dialled(address, reach):
    assert reach_of(address) == reach


def on(host: str, advertise: str = "") -> Listening:
    return Listening(host, 50051, advertise)


@pytest.mark.spec("F-14")
@pytest.mark.parametrize(
    ("listening", "current", "source", "address"),
    [
        # What the operator says wins.
        (on("0.0.0.0", "attic.lan:7"), "", "10.0.0.2", "attic.lan:7"),
        (on("0.0.0.0", "attic.lan"), "", "10.0.0.2", "attic.lan:50051"),
        (on("127.0.0.1", "attic.lan"), "", "10.0.0.2", "attic.lan:50051"),
        # A bound address needs no finding out.
        (on("10.0.0.2"), "", "10.9.9.9", "10.0.0.2:50051"),
        (on("127.0.0.1"), "", "127.0.0.1", "127.0.0.1:50051"),
        # A wildcard is never advertised: the route to the peer says what is.
        (on("0.0.0.0"), "", "10.0.0.2", "10.0.0.2:50051"),
        (on("::"), "", "fd00::2", "[fd00::2]:50051"),
        (on("0.0.0.0"), "", "", ""),
        (on("0.0.0.0"), "", "127.0.0.1", "127.0.0.1:50051"),
        # Loopback gives way to an address that others can use, which then stays.
        (on("0.0.0.0"), "127.0.0.1:50051", "10.0.0.2", "10.0.0.2:50051"),
        (on("0.0.0.0"), "10.0.0.2:50051", "127.0.0.1", "10.0.0.2:50051"),
        (on("0.0.0.0"), "10.0.0.2:50051", "172.17.0.1", "10.0.0.2:50051"),
        # Loopback alone has no address for other machines.
        (on("127.0.0.1"), "127.0.0.1:50051", "10.0.0.2", ""),
        (on("0.0.0.0", "localhost"), "", "10.0.0.2", ""),
    ],
)
def test_what_is_advertised_fits_the_peer(listening, current, source, address):
    assert advertised(listening, current=current, source=source) == address


def test_only_literals_are_told_apart_by_number():
    assert kind_of("attic") == "name"
    assert kind_of("10.0.0.2") == "literal"
    assert kind_of("0.0.0.0") == kind_of("::") == "wildcard"
