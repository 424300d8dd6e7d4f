"""Which addresses of a name are dialled, and in which order."""

from __future__ import annotations

import socket

import pytest
import trio

from kakeya.config.rpc import RpcLimits
from kakeya.rpc.dialing import TcpDialer, in_turns, is_peers_place


class Resolver(trio.abc.HostnameResolver):
    """Knows one name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses

    async def getaddrinfo(self, host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002
        assert host in ("attic.test", b"attic.test")
        return [
            (socket.AF_INET6 if ":" in a else socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port))
            for a in self.addresses
        ]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.fixture
async def listening():
    """A port of 127.0.0.1 that takes connections."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    yield listener.socket.getsockname()[1]
    await listener.aclose()


@pytest.mark.spec("R-17")
@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254"])
async def test_a_name_that_stands_for_a_link_local_address_is_not_dialled(address):
    trio.socket.set_custom_hostname_resolver(Resolver(address))
    with trio.fail_after(1), pytest.raises(OSError, match=f"stands for {address}"):
        await TcpDialer(RpcLimits()).open("attic.test:80")


@pytest.mark.spec("R-17")
@pytest.mark.parametrize(
    ("address", "is_fit"),
    [
        ("10.0.0.2", True),
        ("127.0.0.1", True),
        ("fd00::2", True),
        ("fe80::1%eth0", False),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("ff02::1", False),
    ],
)
def test_no_peer_lives_at_link_local_multicast_or_nowhere(address, is_fit):
    assert is_peers_place(address) is is_fit


@pytest.mark.spec("R-13", "R-17")
async def test_the_other_addresses_of_a_name_are_tried(listening):
    # Nothing listens on that port of 127.0.0.2.
    trio.socket.set_custom_hostname_resolver(Resolver("169.254.169.254", "127.0.0.2", "127.0.0.1"))
    with trio.fail_after(2):
        stream = await TcpDialer(RpcLimits()).open(f"attic.test:{listening}")
    assert stream.socket.getpeername() == ("127.0.0.1", listening)
    await stream.aclose()


@pytest.mark.spec("R-13")
async def test_a_name_none_of_whose_addresses_answers_is_an_os_error(listening):
    trio.socket.set_custom_hostname_resolver(Resolver("127.0.0.2", "127.0.0.3"))
    with trio.fail_after(2), pytest.raises(OSError, match="127.0.0.3"):
        await TcpDialer(RpcLimits()).open(f"attic.test:{listening}")


def test_families_take_turns_and_the_resolvers_first_stays_first():
    assert in_turns(["::1", "::2", "::3", "10.0.0.1"]) == ["::1", "10.0.0.1", "::2", "::3"]
    assert in_turns(["10.0.0.1"]) == ["10.0.0.1"]
