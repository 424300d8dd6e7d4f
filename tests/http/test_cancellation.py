"""A client that leaves stops the work within one block, wherever its request was."""

from __future__ import annotations

import pytest
import trio

from kakeya.config.node import NodeLimits
from kakeya.config.settings import Settings
from tests.http.world import chat_body, world

STEP_S = 0.5
ONE = Settings(node=NodeLimits(max_generations=1, max_waiting_generations=4))
LONG = {"max_tokens": 2000}


def slow(block_len: int) -> float:
    return STEP_S


async def settle(there) -> int:
    """Forward passes so far, once the one in progress is over."""
    await trio.sleep(2 * STEP_S)
    return len(there.verifier.forwards) + len(there.verifier.prefills)


async def demand_quiet(there) -> None:
    """Nothing is computed any more, and a place is free."""
    before = await settle(there)
    await trio.sleep(20 * STEP_S)
    assert len(there.verifier.forwards) + len(there.verifier.prefills) == before
    assert (there.admission.num_running, there.admission.num_waiting) == (0, 0)


@pytest.mark.spec("H-10")
async def test_in_the_queue(autojump_clock):
    async with world(settings=ONE, step_s=slow) as there:
        first, second, third = there.client(), there.client(), there.client()
        await first.send("POST", "/v1/chat/completions", chat_body(**LONG))
        await trio.sleep(STEP_S)
        await second.send("POST", "/v1/chat/completions", chat_body(**LONG))
        await trio.sleep(STEP_S)
        assert there.admission.num_waiting == 1
        await second.leave()
        await trio.sleep(0.01)
        assert there.admission.num_waiting == 0
        await third.send("POST", "/v1/chat/completions", chat_body(max_tokens=2))
        await first.leave()
        assert (await third.answer()).status == 200
        await demand_quiet(there)


@pytest.mark.spec("H-10")
async def test_in_the_prefill(autojump_clock):
    async with world() as there:
        # The toy's device charges nothing for prefill: make each chunk a step.
        there.ready.engine.device.step_s = lambda rows: 0.0
        there.ready.engine.device.job_s = STEP_S
        client = there.client()
        await client.send("POST", "/v1/completions", {"prompt": "abc" * 500, "max_tokens": 5})
        await trio.sleep(20 * STEP_S)
        assert not there.verifier.forwards
        assert 5 < len(there.verifier.prefills) < 100
        await client.leave()
        await demand_quiet(there)
        assert not there.verifier.forwards


@pytest.mark.spec("H-10")
@pytest.mark.parametrize("is_stream", [True, False])
async def test_in_the_answer(is_stream, autojump_clock):
    async with world(step_s=slow) as there:
        client = there.client()
        body = chat_body(stream=is_stream, **LONG)
        await client.send("POST", "/v1/chat/completions", body)
        await trio.sleep(20 * STEP_S)
        assert there.admission.num_running == 1
        await client.leave()
        await demand_quiet(there)


@pytest.mark.spec("H-10")
async def test_while_the_model_is_loading(autojump_clock):
    async with world(is_loaded=False) as there:
        client = there.client()
        await client.send("POST", "/v1/chat/completions", chat_body(stream=True))
        await trio.sleep(3)
        await client.leave()
        await trio.sleep(1)
        there.slot.fill(there.ready)
        await demand_quiet(there)
        assert not there.verifier.forwards


@pytest.mark.spec("H-10")
async def test_a_client_that_half_closes_has_left(autojump_clock):
    async with world(step_s=slow) as there:
        client = there.client()
        await client.send("POST", "/v1/chat/completions", chat_body(stream=True, **LONG))
        await trio.sleep(10 * STEP_S)
        await client.stream.send_eof()
        await demand_quiet(there)
