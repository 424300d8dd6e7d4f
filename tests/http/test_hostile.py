"""Requests with bytes changed, left out and put in: each gets an answer or an end, nothing else."""

from __future__ import annotations

import json
import random
import sys

import pytest
import trio
from structlog.testing import capture_logs

from kakeya.config.http import HttpLimits
from tests.http.world import chat_body, world

QUICK = HttpLimits(header_s=1.0, body_s=1.0, idle_s=2.0, stall_s=2.0)
BODY = json.dumps(
    chat_body(stop=["x"], logit_bias={"3": 1}, logprobs=True, top_logprobs=2, seed=1, user="u")
).encode()
REQUESTS = [
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\naccept: */*\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\norigin: https://a.example\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY),
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    b'5\r\n{"pro\r\ne\r\nmpt":"abc","ma\r\nf\r\nx_tokens": 3}  \r\n0\r\n\r\n',
]


def changed(raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[place:place] = rng.randbytes(rng.randint(1, 5))
            case 1:
                del data[place : place + rng.randint(1, 20)]
            case 2:
                data[place:place] = data[place : place + 30] * rng.randint(1, 40)
            case 3:
                data[place : place + 1] = rng.choice([b"\r\n", b"\0", b'"', b"{", b"[", b"9", b" "])
            case 4:
                del data[place:]
    return bytes(data)


async def end_of(client, raw: bytes) -> bytes:
    """Everything that is answered to `raw` until the connection ends."""
    heard = b""
    await client.stream.send_all(raw)
    while data := await client.stream.receive_some(65536):
        heard += data
    return heard


@pytest.mark.spec("H-01", "H-05")
async def test_bytes_out_of_order_end_in_an_answer_or_in_nothing(autojump_clock):
    seed = 20
    sys.stdout.write(f"seed {seed}\n")
    rng = random.Random(seed)
    with capture_logs() as logs:
        async with world(limits=QUICK) as there:
            for number in range(400):
                raw = changed(REQUESTS[number % len(REQUESTS)], rng)
                with trio.fail_after(60):
                    heard = await end_of(there.client(), raw)
                assert heard == b"" or heard.startswith(b"HTTP/1.1 "), raw
                assert b"HTTP/1.1 500" not in heard, raw
            assert (await there.client().chat()).status == 200
            assert there.admission.num_running == 0
    mistakes = [line for line in logs if line["log_level"] == "error"]
    assert mistakes == []
