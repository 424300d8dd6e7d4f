"""Whole nodes over byte streams in memory."""

from __future__ import annotations

import pytest
import trio

from tests.sim.generations import PROMPTS, Asked, Generation, generate
from tests.sim.model import EOS_ID
from tests.sim.nodes import NodeWorld

NAMES = ("attic", "cellar", "porch")


async def three_nodes(world: NodeWorld) -> None:
    """A verifier and two that draft, all in sight of one another."""
    await world.start("attic", verifier="sim")
    for name in NAMES[1:]:
        await world.start(name, seeds=("attic",))
    await world.time_until(lambda: world.is_whole(*NAMES), limit_s=4)
    await trio.sleep(1)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"draft_on": "remote", "num_drafts": 4},
        {"draft_on": "cellar", "num_drafts": 3, "temperature": 0.7},
        {"window": 16},
        {"exact": "strict"},
        {"plain": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("blur", [0.0, 0.5])
async def test_ids_are_those_of_the_model_alone(how, blur, autojump_clock):
    async with NodeWorld.open(seed=1) as world:
        world.blur = blur
        await three_nodes(world)
        for prompt_ids in PROMPTS[:2]:
            generation = Generation("attic", Asked(prompt_ids, **how))
            await generate(world.channels, world.address("attic"), generation)
            assert generation.status == "OK", generation.why
            if "draft_on" in how:
                assert set(generation.drafted_on) & {"cellar", "porch"}


async def test_some_texts_end_by_themselves(autojump_clock):
    async with NodeWorld.open(seed=2) as world:
        await three_nodes(world)
        generation = Generation("attic", Asked(PROMPTS[1], 100, window=16))
        await generate(world.channels, world.address("attic"), generation)
        assert generation.ids[-1] == EOS_ID
        assert generation.done.finish_reason == "stop"


async def test_nothing_is_left_of_nodes_that_stop_or_die(autojump_clock):
    async with NodeWorld.open(seed=3) as world:
        await three_nodes(world)
        await world.stop("porch")
        await world.kill("cellar")
        assert world.network.machine("porch").num_streams == 0
        assert world.network.machine("cellar").num_streams == 0
        await world.time_until(lambda: world.is_whole("attic"), limit_s=14)
