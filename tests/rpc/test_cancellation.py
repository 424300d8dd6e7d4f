"""A thousand calls, each cancelled at a moment drawn from a seed: nothing is left behind."""

from __future__ import annotations

import random

import pytest
import trio

from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from tests.rpc.peers import ask, linked


@pytest.mark.spec("R-06")
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_thousand_cancelled_calls_leave_nothing_behind(seed, autojump_clock):
    rng = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201
    async with linked(delay_s=0.01) as pair:
        ended, told = [], set()

        async def one(number: int) -> None:
            kind = rng.randrange(4)
            with trio.move_on_after(rng.choice([0, 0.005, 0.01, 0.0201, 0.05, 0.2])):
                try:
                    if kind == 0:
                        async for _ in pair.stub.Generate(
                            node_pb2.GenerateRequest(max_tokens=50, temperature=0.01)
                        ):
                            pass
                    elif kind == 1:
                        await pair.stub.GetFleet(ask("x" * rng.randrange(600_000)))
                    elif kind == 2:
                        await pair.stub.GetFleet(ask(f"big {rng.randrange(600_000)}"))
                    else:
                        await pair.stub.GetFleet(ask("wait 0.1"))
                except RpcFailedError as error:
                    # The server's own deadline may be a little ahead of the reset.
                    told.add(status_name(error))
            ended.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(one, number)
                if rng.random() < 0.5:
                    await trio.sleep(rng.uniform(0, 0.02))
        await trio.sleep(1)
        assert len(ended) == 1000
        assert told <= {"DEADLINE_EXCEEDED"}
        assert pair.node.running == 0
        assert pair.endpoint.num_calls == 0
        assert pair.endpoint.held_bytes == 0
        assert pair.channels.budget.held_bytes == 0
        connection = await pair.channel.connected()
        assert connection.streams == {}
        assert len(pair.dialer.streams) == 1
        assert (await pair.stub.GetFleet(ask())).fleet_name == "hello"
