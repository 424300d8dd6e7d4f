"""Sessions between whole nodes: they speed texts up, change none, and leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from kakeya.config.sessions import SessionLimits
from kakeya.drafting.ngram import NGRAM
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceStub
from tests.sim.drafter import MODEL_ID
from tests.sim.generations import PROMPTS, Asked, Generation, generate, true_ids, truth_of
from tests.sim.nodes import NodeWorld, quick_settings
from tests.sim.quiet import busy_with, drafting_sessions, parts_of

LIMITS = SessionLimits(opened_s=4.0, restored_s=4.0, seeded_s=6.0, drafting_s=6.0, max_sessions=3)


def world_of(seed: int, limits: SessionLimits = LIMITS):
    return NodeWorld.open(seed=seed, settings=replace(quick_settings(), sessions=limits))


async def house(world: NodeWorld, *drafting: str) -> None:
    """A verifier, and nodes with a drafter."""
    await world.start("attic", verifier="sim")
    for name in drafting:
        await world.start(name, seeds=("attic",), drafts=True)
    await world.time_until(lambda: world.is_whole("attic", *drafting), limit_s=6)
    await trio.sleep(2)  # catalogues are read


def asked(prompt: int = 6, max_tokens: int = 100, **more) -> Asked:
    return Asked(
        PROMPTS[prompt], max_tokens,
        **{"draft_on": "remote", "proposer": MODEL_ID, "num_drafts": 4, **more},
    )  # fmt: skip


async def decoded(world: NodeWorld, what: Asked) -> Generation:
    world.contexts.expect(truth_of(what).rows)
    generation = Generation("attic", what)
    await generate(world.channels, world.address("attic"), generation)
    assert generation.status == "OK", generation.why
    world.contexts.demand_true()
    return generation


async def drafted_elsewhere(generation: Generation) -> str:
    """Wait for a block that another node drafted; which one."""
    while not generation.drafted_on or generation.drafted_on[-1] == "attic":
        assert not generation.is_over, "the text ended before anybody else drafted"
        await generation.next_block.wait()
    return generation.drafted_on[-1]


def sessions_of(world: NodeWorld, name: str) -> dict[str, int]:
    return {k: v for k, v in drafting_sessions(parts_of(world.nodes[name])).items() if v}


@pytest.mark.parametrize("how", [{}, {"window": 16}, {"temperature": 0.7}, {"exact": "strict"}],
                         ids=str)  # fmt: skip
async def test_a_session_drafts_from_the_true_context_and_is_often_right(how, autojump_clock):
    async with world_of(1) as world:
        await house(world, "barn")
        generation = await decoded(world, asked(**how))
        pairs = set(zip(generation.proposers, generation.drafted_on, strict=True))
        # The n-gram of this host, until the session is seeded.
        assert {(MODEL_ID, "barn")} <= pairs <= {(MODEL_ID, "barn"), (NGRAM, "attic")}
        assert generation.num_accepted > len(generation.drafted_on) / 8
        assert world.contexts.num_heard >= generation.drafted_on.count("barn")
        await trio.sleep(0.5)
        assert not sessions_of(world, "barn")
        assert not sessions_of(world, "attic")


@pytest.mark.parametrize(
    "method", ["ListDrafters", "Restore", "SeedContext", "ExtendContext", "DraftBlock"]
)
@pytest.mark.parametrize("says_so", [True, False])
async def test_c14_a_drafting_node_that_dies_within_any_call_changes_nothing_and_comes_back(
    method, says_so, autojump_clock
):
    async with world_of(14) as world:
        await world.start("attic", verifier="sim")
        await world.start("barn", seeds=("attic",), drafts=True)
        died = trio.Event()

        async def kill() -> None:
            await trio.sleep(0.002)
            await world.kill("barn", says_so=says_so)
            died.set()

        async with trio.open_nursery() as nursery:
            world.network.watches.append(
                (f"/{method}".encode(), "barn", lambda: nursery.start_soon(kill))
            )
            await trio.sleep(2)
            generation = await decoded(world, asked())
            await died.wait()
        assert tuple(generation.ids) == true_ids(generation.asked)
        waits_s = [b - a for a, b in zip(generation.heard_s, generation.heard_s[1:], strict=False)]
        assert max(waits_s) < 1.2  # the longest wait for a draft, and a step
        await world.start("barn", seeds=("attic",), drafts=True)
        await trio.sleep(5)
        again = await decoded(world, asked())
        assert "barn" in again.drafted_on


async def test_the_next_drafter_takes_over_in_the_middle_of_a_text(autojump_clock):
    async with world_of(15) as world:
        await house(world, "barn", "cellar")
        world.nodes["attic"].devices["verifying"].slowness = 5.0
        generation = Generation("attic", asked(max_tokens=300, prompt=9))
        world.contexts.expect(truth_of(generation.asked).rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            first = await drafted_elsewhere(generation)
            await world.kill(first)
        world.contexts.demand_true()
        assert generation.status == "OK"
        after = generation.drafted_on[generation.drafted_on.index(first) :]
        assert ({"barn", "cellar"} - {first}) & set(after)


async def test_l6_a_text_goes_back_to_its_drafter_soon_after_that_returned(autojump_clock):
    async with world_of(16) as world:
        await house(world, "barn")
        world.nodes["attic"].devices["verifying"].slowness = 5.0
        generation = Generation("attic", asked(max_tokens=450, prompt=9))
        world.contexts.expect(truth_of(generation.asked).rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await drafted_elsewhere(generation)
            await world.kill("barn")
            await trio.sleep(1.5)
            await world.start("barn", seeds=("attic",), drafts=True)
            num_blocks, start_s = len(generation.heard_s), trio.current_time()
            generation.drafted_on.clear()
            await drafted_elsewhere(generation)
            assert trio.current_time() - start_s < 4
            assert len(generation.heard_s) - num_blocks < 120
            nursery.cancel_scope.cancel()


async def test_d04_sessions_of_a_verifier_that_died_end_by_their_limits(autojump_clock):
    async with world_of(4) as world:
        await house(world, "barn")
        generation = Generation("attic", asked(max_tokens=300))
        world.contexts.expect(truth_of(generation.asked).rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await drafted_elsewhere(generation)
            assert sessions_of(world, "barn")["sessions"] == 1
            await world.kill("attic", says_so=False)
        # Silence is noticed by nobody: the session's own limit ends it.
        await world.time_until(
            lambda: not sessions_of(world, "barn"), limit_s=LIMITS.drafting_s + 0.5
        )


async def test_d04_a_full_node_refuses_and_closing_twice_is_fine(autojump_clock):
    async with world_of(5) as world:
        await house(world, "barn")
        stub = DFlashProposerServiceStub(world.channels.to(world.address("barn")))

        async def restore(name: str) -> str:
            try:
                await stub.Restore(
                    pb.RestoreRequest(
                        session_id=name, prompt_ids=[1, 2, 3], sink=0, window=64, model_id=MODEL_ID
                    )
                )
            except RpcFailedError as error:
                return f"{status_name(error)}: {status_text(error)}"
            return "OK"

        assert [await restore(f"s{n}") for n in range(3)] == ["OK"] * 3
        assert (await restore("s3")).startswith("RESOURCE_EXHAUSTED: 3 sessions are open")
        close = pb.DFlashProposerServiceCloseSessionRequest(session_id="s0")
        for _ in range(2):
            await stub.CloseSession(close)
        assert await restore("s3") == "OK"
        with pytest.raises(RpcFailedError) as caught:
            await stub.DraftBlock(pb.DraftBlockRequest(session_id="never", block_size=1))
        assert status_name(caught.value) == "NOT_FOUND"
        await trio.sleep(LIMITS.restored_s + 0.1)
        assert not sessions_of(world, "barn")


async def test_leaving_a_text_at_any_moment_leaves_no_session(autojump_clock):
    async with world_of(6) as world:
        await house(world, "barn")
        what = asked(prompt=3, max_tokens=40)
        world.contexts.expect(truth_of(what).rows)
        for step in range(40):
            generation = Generation("attic", what)
            with trio.move_on_after(0.0137 * step):
                await generate(world.channels, world.address("attic"), generation)
            await world.time_until(
                lambda: not sessions_of(world, "barn") and not sessions_of(world, "attic"),
                limit_s=1.0,
            )
        await decoded(world, what)
        await trio.sleep(0.5)
        held = busy_with(world.nodes["barn"])
        assert not {"sessions", "session bytes", "jobs"} & set(held)


@pytest.mark.parametrize("factor", [0.0, 3.0, 60.0])
async def test_a_drafter_that_fails_or_strains_changes_no_id(factor, autojump_clock):
    async with world_of(7) as world:
        await house(world, "barn")
        plain = await decoded(world, asked(plain=True, draft_on="", proposer="", num_drafts=0))
        await decoded(world, asked())
        device = world.nodes["barn"].devices["dflash"]
        device.fails, device.slowness = factor == 0, factor or 1.0
        strained = await decoded(world, asked())
        assert strained.ids == plain.ids
        plain_s = plain.ended_s - plain.started_s
        # Two late drafts, then the circuit is open; each costs at most its wait.
        assert strained.ended_s - strained.started_s < plain_s * 1.3 + 0.4


def kept_by(world: NodeWorld) -> dict[str, int]:
    """What both nodes still hold for a text; calls of gossip do not count."""
    held = {**busy_with(world.nodes["attic"]), **busy_with(world.nodes["barn"])}
    return {what: n for what, n in held.items() if what not in ("calls", "message bytes")}


class Cancels(trio.abc.Instrument):
    """Cancels a scope at the n-th step any task takes from now on."""

    def __init__(self, scope: trio.CancelScope, at_step: int) -> None:
        self._scope = scope
        self._left = at_step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


@pytest.mark.parametrize("seed", range(2))
async def test_cancelling_at_any_checkpoint_leaves_nothing_and_costs_no_later_text(
    seed, autojump_clock
):
    async with world_of(seed) as world:
        await house(world, "barn")
        what = asked(prompt=3, max_tokens=8)
        world.contexts.expect(truth_of(what).rows)
        num_cancelled, at_step = 0, 1
        while num_cancelled < 400:
            scope, generation = trio.CancelScope(), Generation("attic", what)
            cancels = Cancels(scope, at_step)
            trio.lowlevel.add_instrument(cancels)
            with scope:
                await generate(world.channels, world.address("attic"), generation)
            trio.lowlevel.remove_instrument(cancels)
            if generation.status == "OK":
                break  # it ended before so many steps
            num_cancelled += 1
            at_step += 2 + seed
            await world.time_until(lambda: not kept_by(world), limit_s=1.0)
        assert 50 < num_cancelled < 400
        world.contexts.demand_true()
        assert (await decoded(world, asked())).ids


async def test_banks_are_kept_for_the_turn_whoever_drafts_afterwards(autojump_clock):
    async with world_of(20) as world:
        await house(world, "barn", "cellar")
        world.nodes["attic"].devices["verifying"].slowness = 3.0
        what = asked(prompt=10, max_tokens=200, window=16, restored=True)
        assert len(what.prompt_ids) > 18
        plain = truth_of(replace(what, window=0, restored=False)).ids
        assert true_ids(what) != plain  # the banks matter
        world.contexts.expect(truth_of(what).rows)
        generation = Generation("attic", what)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await world.kill(await drafted_elsewhere(generation))
        assert generation.status == "OK", generation.why
        world.contexts.demand_true()


async def test_without_anybody_to_make_banks_a_text_that_needs_them_is_refused(autojump_clock):
    async with world_of(21) as world:
        await house(world)
        generation = Generation("attic", asked(prompt=9, window=16, restored=True))
        await generate(world.channels, world.address("attic"), generation)
        assert generation.status == "UNAVAILABLE"
        assert "got no banks" in generation.why
        await decoded(world, asked(draft_on="", proposer=""))


async def test_a_session_outlives_a_draft_that_came_too_late(autojump_clock):
    async with world_of(22) as world:
        await house(world, "barn")
        world.nodes["attic"].devices["verifying"].slowness = 3.0
        device = world.nodes["barn"].devices["dflash"]
        generation = Generation("attic", asked(prompt=9, max_tokens=300))
        world.contexts.expect(truth_of(generation.asked).rows)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await drafted_elsewhere(generation)
            device.slowness = 300.0
            await trio.sleep(0.2)
            device.slowness = 1.0
            generation.drafted_on.clear()
            await drafted_elsewhere(generation)
        assert generation.done.fallbacks["late"] == 1
        assert not world.trace.mistakes
        world.contexts.demand_true()
        await trio.sleep(0.5)
        closed = parts_of(world.nodes["barn"]).dflash.sessions.counts().closed
        assert sum(closed.values()) == 1
