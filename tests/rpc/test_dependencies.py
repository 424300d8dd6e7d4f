"""What stands between a peer's bytes and the libraries with known faults."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest
import trio

import kakeya.rpc
from kakeya.rpc.channel import Channels
from kakeya.rpc.headers import HeaderDecoder, literal
from kakeya.rpc.status import RpcFailedError, status_name
from tests.rpc.peers import ask, linked

SOURCE = Path(kakeya.rpc.__file__).parent
ENGINE = ("h2", "hyperframe", "purerpc.grpc_socket", "purerpc.grpclib.connection", "anyio")


def test_nothing_of_ours_imports_h2_or_purerpcs_engine():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith(ENGINE), f"{path.name} imports {name}"


def test_no_secret_of_a_header_reaches_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    HeaderDecoder(4096).decode(literal("authorization", "Bearer secret-of-ours"))
    assert "secret-of-ours" not in caplog.text


@pytest.mark.spec("R-04")
async def test_channels_that_stop_being_served_fail_their_calls(autojump_clock):
    async with linked() as pair, trio.open_nursery() as nursery:
        endings = []

        async def one():
            try:
                await stub.GetFleet(ask("wait 50"))
            except RpcFailedError as error:
                endings.append(status_name(error))

        own = await nursery.start(_serve_for_a_second, pair)
        stub = type(pair.stub)(own.to("there:1"))
        nursery.start_soon(one)
        await trio.sleep(2)
        assert endings == ["UNAVAILABLE"]
        await one()
        assert endings == ["UNAVAILABLE"] * 2


async def _serve_for_a_second(pair, task_status=trio.TASK_STATUS_IGNORED):
    channels = Channels(dialer=pair.dialer, limits=pair.channels.limits, rng=pair.channels.rng)
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            await nursery.start(channels.serve)
            task_status.started(channels)
            await trio.sleep_forever()
