"""Mutual TLS with the fleet's CA: ours with ours, and grpcio on either side."""

from __future__ import annotations

import grpc
import pytest
import trio

from kakeya.rpc.security import client_tls, guarded_by, server_tls
from kakeya.rpc.status import RpcFailedError, status_name
from tests.interop.certificates import HAS_OPENSSL, issue, make_ca
from tests.interop.grpcio_peer import get_fleet, grpcio_server, in_thread, serving
from tests.interop.test_grpcio import our_client
from tests.rpc.peers import Node, ask
from tests.rpc.raw import GREETING, call

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="the openssl command makes the CA")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    ca = make_ca(folder, "fleet-ca")
    return {name: issue(folder, ca, name) for name in ("attic", "cellar")}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    return issue(folder, make_ca(folder, "other-ca"), "stranger")


def server_side(identity):
    return server_tls(
        cert_file=identity.cert_file, key_file=identity.key_file, ca_file=identity.ca_file
    )


def client_side(identity, ca_file=None):
    return client_tls(
        cert_file=identity.cert_file,
        key_file=identity.key_file,
        ca_file=ca_file or identity.ca_file,
    )


@pytest.mark.spec("R-16")
async def test_the_callers_certificate_names_it_to_the_handler(fleet):
    node = Node()
    admit = guarded_by("k" * 32)
    async with (
        serving([node.service], tls=server_side(fleet["attic"]), admit=admit) as server,
        our_client(server.port, tls=client_side(fleet["cellar"])) as stub,
    ):
        text = "x" * 3_000_000
        assert (await stub.GetFleet(ask(text))).fleet_name == text
    assert node.calls[0].principal == "cellar"


@pytest.mark.spec("R-16")
async def test_a_certificate_of_another_ca_is_not_let_in(fleet, stranger):
    ca_file = fleet["attic"].ca_file
    async with (
        serving([Node().service], tls=server_side(fleet["attic"])) as server,
        our_client(server.port, tls=client_side(stranger, ca_file)) as stub,
    ):
        with pytest.raises(RpcFailedError) as caught:
            await stub.GetFleet(ask())
        assert status_name(caught.value) == "UNAVAILABLE"


async def test_a_caller_without_tls_is_unavailable_and_a_server_of_another_ca_not_trusted(
    fleet, stranger
):
    async with serving([Node().service], tls=server_side(fleet["attic"])) as server:
        async with our_client(server.port) as stub:
            with pytest.raises(RpcFailedError) as caught:
                await stub.GetFleet(ask())
            assert status_name(caught.value) == "UNAVAILABLE"
        tls = client_side(fleet["cellar"], stranger.ca_file)
        async with our_client(server.port, tls=tls) as stub:
            with pytest.raises(RpcFailedError, match="TLS") as caught:
                await stub.GetFleet(ask())
            assert status_name(caught.value) == "UNAVAILABLE"


async def test_grpcio_calls_us_over_mutual_tls(fleet):
    key, cert, ca = fleet["cellar"].read()
    credentials = grpc.ssl_channel_credentials(ca, key, cert)
    node = Node()
    async with serving([node.service], tls=server_side(fleet["attic"])) as server:
        with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
            answer = await in_thread(get_fleet(channel), ask("x" * 1_000_000))
            assert len(answer.fleet_name) == 1_000_000
    assert node.calls[0].principal == "cellar"


async def test_we_call_grpcio_over_mutual_tls(fleet):
    key, cert, ca = fleet["attic"].read()
    credentials = grpc.ssl_server_credentials([(key, cert)], ca, require_client_auth=True)
    with grpcio_server(credentials) as (port, _):
        async with our_client(port, tls=client_side(fleet["cellar"])) as stub:
            assert len((await stub.GetFleet(ask("x" * 1_000_000))).fleet_name) == 1_000_000


async def test_a_request_right_behind_the_handshake_is_read(fleet):
    """The caller's first bytes may come in one piece with the end of its handshake."""
    node = Node()
    tls = server_side(fleet["attic"])
    async with serving([node.service], tls=tls) as server:
        for _ in range(20):
            tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
            late = Corked(tcp)
            stream = trio.SSLStream(late, client_side(fleet["cellar"]), server_hostname="localhost")
            with trio.fail_after(2):
                await stream.do_handshake()
                await stream.send_all(GREETING + call(1))
                await late.uncork()
                got = b""
                while b"hello" not in got:
                    got += await stream.receive_some(65536)
            await trio.aclose_forcefully(stream)


class Corked(trio.abc.Stream):
    """Holds back what is sent after the first message, until uncork()."""

    def __init__(self, inner: trio.SocketStream) -> None:
        self._inner = inner
        self._held = b""
        self._num_sent = 0

    async def send_all(self, data) -> None:
        self._num_sent += 1
        if self._num_sent == 1:
            await self._inner.send_all(data)
        else:
            self._held += bytes(data)

    async def uncork(self) -> None:
        self._num_sent = -1_000_000
        await self._inner.send_all(self._held)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._inner.aclose()
