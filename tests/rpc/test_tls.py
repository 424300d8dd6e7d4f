"""TLS in plain steps: records as full as they go, read as far as they came."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.config.certificates import CertificateLimits
from kakeya.rpc.certificates import issue, make_authority, read_authority
from kakeya.rpc.pump import Pump
from kakeya.rpc.security import client_tls, server_tls
from kakeya.rpc.tls import RECORD_BYTES, TlsStream, runs
from tests.rpc.peers import LIMITS

CERTIFICATES = CertificateLimits()
# A record's head, tag and kind.
OVERHEAD_BYTES = 5 + 16 + 1


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    now = datetime.now(UTC).timestamp()
    ca = make_authority("fleet", now_unix=now, limits=CERTIFICATES)
    authority = read_authority(ca.certificate, ca.key)
    own = issue(authority, "attic", ["localhost"], now_unix=now, limits=CERTIFICATES)
    pems = {"cert_file": own.certificate, "key_file": own.key, "ca_file": ca.certificate}
    for name, pem in pems.items():
        (folder / name).write_bytes(pem)
    return {name: str(folder / name) for name in pems}


class Caller:
    """Python's own TLS over `inner`, step by step."""

    def __init__(self, inner, files) -> None:
        self._inner = inner
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = client_tls(**files).wrap_bio(self._in, self._out, server_hostname="attic")

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._inner.send_all(self._out.read())
                self._in.write(await self._inner.receive_some())
        await self._inner.send_all(self._out.read())

    def said(self, content: bytes) -> bytes:
        self._tls.write(content)
        return self._out.read()

    def goodbye(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._out.read()


async def shaken(near, far, files) -> tuple[Caller, TlsStream]:
    """Both ends of a link after their handshake."""
    caller, server = Caller(near, files), TlsStream(far, server_tls(**files), is_server=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller.shake_hands)
        nursery.start_soon(server.shake_hands)
    return caller, server


async def linked(files) -> tuple[Caller, TlsStream]:
    return await shaken(*trio.testing.memory_stream_pair(), files)


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 9, 500, 16_383, 16_384, 16_385, 40_000]), max_size=6))
def test_runs_are_the_same_bytes_and_whole_records_but_for_the_last(sizes):
    buffers = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    found = list(runs(buffers))
    assert b"".join(found) == b"".join(buffers)
    assert all(len(run) % RECORD_BYTES == 0 for run in found[:-1])


async def test_a_frame_of_ours_leaves_in_full_records(files, autojump_clock):
    _, server = await linked(files)
    sealed = server.seal([b"123456789", bytes(LIMITS.send_frame_bytes - 9)])
    num_records = LIMITS.send_frame_bytes // RECORD_BYTES
    assert len(sealed) == num_records * (RECORD_BYTES + OVERHEAD_BYTES)


async def test_all_that_came_is_read_in_one_go_and_no_more_than_fits(files, autojump_clock):
    caller, server = await linked(files)
    server.put(memoryview(caller.said(bytes(100_000))))
    room = memoryview(bytearray(60_000))
    assert [server.read_into(room) for _ in range(3)] == [60_000, 40_000, 0]
    assert not server.has_ended


async def test_what_came_before_the_peers_end_is_read_before_it_is_told(files, autojump_clock):
    caller, server = await linked(files)
    server.put(memoryview(caller.said(b"last words") + caller.goodbye()))
    room = memoryview(bytearray(100))
    assert server.read_into(room) == 10
    assert server.has_ended
    assert server.read_into(room) == 0


async def test_a_record_that_was_changed_is_an_os_error(files, autojump_clock):
    caller, server = await linked(files)
    sealed = bytearray(caller.said(bytes(100)))
    sealed[-1] ^= 1
    server.put(memoryview(sealed))
    with pytest.raises(OSError, match="(?i)mac|decrypt"):
        server.read_into(memoryview(bytearray(100)))


@dataclass
class Kept:
    """A sink that keeps what it is fed; `room` bytes of it are asked for directly."""

    fed: bytes = b""
    room: bytearray | None = None
    num_placed: int = 0

    def feed(self, view: memoryview) -> None:
        self.fed += bytes(view)

    def direct(self) -> memoryview | None:
        left = None if self.room is None else memoryview(self.room)[self.num_placed :]
        return left or None

    def placed(self, num_bytes: int) -> None:
        self.num_placed += num_bytes


@pytest.mark.parametrize("is_direct", [True, False])
async def test_a_pump_reads_to_the_peers_end_though_its_socket_stays_open(files, is_direct):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    far = await listeners[0].accept()
    caller, server = await shaken(near, far, files)
    content = bytes(range(200)) * 500
    await near.send_all(caller.said(content) + caller.goodbye())
    sink = Kept(room=bytearray(90_000) if is_direct else None)
    pump = Pump(server, limits=LIMITS, scratch=bytearray(LIMITS.read_bytes), lost=lambda: None)
    with trio.fail_after(5):
        await pump.read_all(sink)
    assert bytes(sink.room or b"") + sink.fed == content
    for stream in (near, far, listeners[0]):
        await stream.aclose()
