"""How a run of whole nodes ends: texts that must succeed, and a stop that leaves nothing behind."""

from __future__ import annotations

import trio

from kakeya.drafting.ngram import NGRAM
from tests.sim.drafter import MODEL_ID
from tests.sim.generations import Generation
from tests.sim.nodes_play import NodesPlay
from tests.sim.oracle import demand
from tests.sim.plan import Text
from tests.sim.quiet import busy_with, demand_nothing_left

# What a text of the storm may end with besides well: its node was away, or not the same.
EXCUSED = ("OK", "CANCELLED", "UNAVAILABLE", "TOO_SLOW", "FAILED_PRECONDITION")
# The longest a circuit stays open, and a few texts more.
REMOTE_AGAIN_S = 40.0
# Looks, a hundredth of a second apart: gossip's own calls come and go.
QUIET_LOOKS = 1200
# Goodbye to three peers side by side, and the silence of one whose power failed.
STOP_S = 7.5


def demand_ended_well(play: NodesPlay) -> None:
    """Every text of the storm is over, and none ended in a mistake of ours."""
    for generation in play.generations:
        is_excused = generation.status in EXCUSED or (
            generation.status == "INTERNAL" and generation.on in play.broken_devices
        )
        demand(
            is_excused,
            "S10",
            f"a text of {generation.on} ended in {generation.status}: {generation.why}",
        )


async def last_texts(play: NodesPlay) -> None:
    """Every verifier decodes all sorts of texts, and drafts come from other nodes again (L6)."""
    names = play.plan.names[:-1] if play.plan.ending in ("death", "leave") else play.plan.names
    for name in play.plan.verifiers:
        if name not in names:
            continue
        # A new command has a new connection: the old one may lead to a host that lost its power.
        play.world.channels.drop(play.address(name))
        for text in (
            Text(0.0, name, prompt=3, max_tokens=24),
            Text(0.0, name, prompt=4, max_tokens=24, window=16),
            Text(0.0, name, prompt=5, max_tokens=16, temperature=0.7, draft_on="remote"),
            Text(0.0, name, prompt=7, max_tokens=24, proposer=MODEL_ID, num_drafts=4),
        ):
            await must_succeed(play, text)
        others = len(names) - 1
        await drafts_remotely(play, name, others=others, proposer=NGRAM)
        drafters = [each for each in names[1:] if each != name]
        await drafts_remotely(play, name, others=len(drafters), proposer=MODEL_ID)
        if drafters:
            text = Text(0.0, name, prompt=9, max_tokens=16, window=16, restored=True)
            await must_succeed(play, text)


async def must_succeed(play: NodesPlay, text: Text) -> Generation:
    generation = await play.text(text)
    demand(
        generation.status == "OK",
        "S10",
        f"in the calm a text of {text.on} ended in {generation.status}: {generation.why}",
    )
    return generation


async def drafts_remotely(play: NodesPlay, name: str, *, others: int, proposer: str) -> None:
    """L6: once a proposer has been back for as long as its circuit may stay open, it drafts."""
    end_s = trio.current_time() + REMOTE_AGAIN_S
    while others:
        text = Text(
            0.0, name, prompt=6, max_tokens=40, draft_on="remote", num_drafts=3, proposer=proposer
        )
        generation = await must_succeed(play, text)
        if set(generation.drafted_on) - {name}:
            return
        demand(
            trio.current_time() < end_s,
            "L6",
            f"{name} has not drafted with {proposer} elsewhere for {REMOTE_AGAIN_S:g} s",
        )
        await trio.sleep(1)


async def stop_all(play: NodesPlay) -> None:
    """S8: nothing is held for callers any more; S9: each node stops and leaves nothing."""
    play.look()
    for node in list(play.world.nodes.values()):
        for _ in range(QUIET_LOOKS):
            held = busy_with(node)
            if not held:
                break
            await trio.sleep(0.01)
        demand(not held, "S8", f"{node.name} has nothing to do and still holds {held}")
    for name in list(play.world.nodes):
        node = play.world.nodes[name]
        start_s = trio.current_time()
        await play.world.stop(name)
        spent_s = trio.current_time() - start_s
        demand(spent_s < STOP_S, "S9", f"{name} took {spent_s:.1f} s to stop with nothing to do")
        demand_nothing_left(play.world, node)
