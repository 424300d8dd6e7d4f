"""h2load, a foreign HTTP/2 client, on our server: many calls, many streams, many connections."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.interop.grpcio_peer import in_thread, serving
from tests.rpc.peers import Node
from tests.rpc.raw import HELLO, PATH

NUM_CALLS = 2000


@pytest.mark.spec("R-02")
@pytest.mark.skipif(shutil.which("h2load") is None, reason="needs h2load (nghttp2-client)")
async def test_h2load_is_served_every_call(tmp_path):
    body = tmp_path / "body"
    body.write_bytes(HELLO)
    node = Node()
    async with serving([node.service]) as server:
        command = ["h2load", "-n", str(NUM_CALLS), "-c", "8", "-m", "50", "-d", str(body)]
        for field in ("content-type: application/grpc", "te: trailers"):
            command += ["-H", field]
        command.append(f"http://{server.address}{PATH}")
        done = await in_thread(
            lambda: subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        )
    assert re.search(rf"{NUM_CALLS} succeeded, 0 failed, 0 errored", done.stdout), done.stdout
    assert node.served == NUM_CALLS
