"""Reported cases of nodes, by their numbers: clocks, addresses, deaths and slow proposers."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio

from kakeya.rpc.status import RpcFailedError, status_name
from kakeya.wire.pb.kakeya.node.v1 import node_pb2
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import ProposerServiceStub
from tests.sim.generations import PROMPTS, Asked, Generation, generate, true_ids
from tests.sim.nodes import DESK, NodeWorld
from tests.sim.quiet import busy_with, tasks_of
from tests.sim.rogue import MANNERS, Rogue, host_rogue

NAMES = ("attic", "barn", "cellar")


async def house(world: NodeWorld, names: tuple[str, ...] = NAMES) -> None:
    """A verifier, and others that draft."""
    await world.start(names[0], verifier="sim")
    for name in names[1:]:
        await world.start(name, seeds=names[:1])
    await world.time_until(lambda: world.is_whole(*names), limit_s=6)
    await trio.sleep(1)


async def decoded(world: NodeWorld, on: str = "attic", **asked) -> Generation:
    generation = Generation(on, Asked(**{"prompt_ids": PROMPTS[4], **asked}))
    await generate(world.channels, world.address(on), generation)
    assert generation.status == "OK", generation.why
    return generation


def rows(world: NodeWorld, name: str) -> dict:
    return {row.node_id: row for row in world.fleet(name).nodes()}


@pytest.mark.spec("F-09")
async def test_c04_two_nodes_with_one_id_name_each_other_and_do_not_flap(autojump_clock):
    async with NodeWorld.open(seed=4) as world:
        await house(world)
        await world.start("one", node_id="twin", seeds=("attic",))
        await world.start("two", node_id="twin", seeds=("attic",))
        await trio.sleep(30)
        alarms = [line for line in world.trace.lines if " error " in line]
        assert len(alarms) == 2
        assert all("one:50051" in line and "two:50051" in line for line in alarms)
        assert world.fleet("one").nodes()[0].conflict_address == "two:50051"
        assert world.fleet("two").nodes()[0].conflict_address == "one:50051"
        seen = []
        for _ in range(60):
            await trio.sleep(1)
            seen.append(world.sees("attic")["twin"])
            assert world.fleet("one").nodes()[0].conflict_address == "two:50051"
            assert world.fleet("two").nodes()[0].conflict_address == "one:50051"
        # Peers show one of them or the other, as cards come; nobody bids for ever.
        assert set(seen) <= {"one:50051", "two:50051"}
        ahead_s = world.fleet("one").own_card().announced_at_unix - world.clock("one")()
        assert ahead_s <= world.settings.fleet.max_ahead_s
        assert (await decoded(world)).ids  # the others work on
        assert len([line for line in world.trace.lines if " error " in line]) == 2


@pytest.mark.spec("F-04", "F-05")
async def test_c05_a_killed_node_goes_with_its_lifetime_and_is_itself_again_at_once(
    autojump_clock,
):
    async with NodeWorld.open(seed=5) as world:
        await house(world, ("attic", "barn"))
        await world.start("porch", node_id="", seeds=("attic",))
        await trio.sleep(3)
        name = world.fleet("porch").node_id
        assert name.startswith("node-")
        await world.kill("porch")
        await world.time_until(lambda: name not in world.sees("attic"), limit_s=14)
        await world.start("porch", node_id="", seeds=("attic",), port=50060)
        assert world.fleet("porch").node_id == name
        await world.time_until(
            lambda: world.sees("attic").get(name) == world.sees("barn").get(name) == "porch:50060",
            limit_s=3,
        )


@pytest.mark.spec("F-12")
@pytest.mark.parametrize("offset_s", [5.0, -5.0, 600.0, -600.0])
async def test_c09_a_wrong_clock_is_measured_and_warned_of_and_the_node_works(
    offset_s, autojump_clock
):
    async with NodeWorld.open(seed=9) as world:
        world.clock("cellar").offset_s = offset_s
        await world.start("attic", verifier="sim")
        await world.start("barn", seeds=("attic",))
        await world.start("cellar", verifier="sim", seeds=("attic",))
        await trio.sleep(10)
        warned = [line for line in world.trace.lines if "clock is off" in line]
        assert any(f"skew_s={-offset_s}" in line or f"skew_s={offset_s}" in line or
                   "skew_s" in line for line in warned)  # fmt: skip
        assert {"attic", "barn"} <= set(world.sees("attic"))
        if abs(offset_s) < 12:
            assert world.is_whole(*NAMES)
            assert rows(world, "attic")["cellar"].clock_skew_s == pytest.approx(offset_s, abs=0.1)
        for name in ("attic", "cellar"):
            assert (await decoded(world, name)).ids
        world.clock("cellar").offset_s = 0.0
        await world.time_until(lambda: world.is_whole(*NAMES), limit_s=6)


@pytest.mark.spec("F-05")
@pytest.mark.parametrize("step_s", [-5.0, -20.0, -600.0])
async def test_c09_a_clock_that_jumps_back_freezes_nothing(step_s, autojump_clock):
    async with NodeWorld.open(seed=9) as world:
        await house(world)
        world.clock("cellar").offset_s = step_s
        await trio.sleep(14)
        if step_s == -5.0:
            assert world.is_whole(*NAMES)
        before = world.fleet("cellar").own_card().announced_at_unix
        world.clock("cellar").offset_s = 0.0
        await world.time_until(lambda: world.is_whole(*NAMES), limit_s=6)
        assert world.fleet("cellar").own_card().announced_at_unix > before


@pytest.mark.spec("F-14")
async def test_c10_a_new_address_is_announced_within_an_interval_and_old_calls_end(
    autojump_clock,
):
    async with NodeWorld.open(seed=10) as world:
        world.network.machine("cellar")
        world.network.move("cellar", "10.0.0.3")
        await house(world, ("attic", "barn"))
        await world.start("cellar", host="0.0.0.0", seeds=("attic",))
        await world.time_until(
            lambda: world.sees("attic").get("cellar") == "10.0.0.3:50051", limit_s=3
        )
        await trio.sleep(2)
        world.network.move("cellar", "10.0.0.9")
        await world.time_until(
            lambda: {world.sees(n).get("cellar") for n in NAMES} == {"10.0.0.9:50051"},
            limit_s=2 + 2,  # calls under way at the old address run out first
        )
        assert (await decoded(world, draft_on="cellar", num_drafts=3)).ids
        world.network.dialled.clear()
        await trio.sleep(20)
        assert not [to for _, to in world.network.dialled if to.startswith("10.0.0.3")]


@pytest.mark.spec("D-15")
@pytest.mark.parametrize("method", ["ProposeBlock", "ExchangeCapabilities"])
async def test_c14_a_drafter_killed_within_a_call_costs_a_fallback_and_comes_back(
    method, autojump_clock
):
    async with NodeWorld.open(seed=14) as world:
        await house(world, ("attic", "barn"))
        warm = await decoded(world, draft_on="barn", num_drafts=3, max_tokens=60)
        assert "barn" in warm.drafted_on

        died = trio.Event()

        async def kill() -> None:
            await trio.sleep(0.0005)
            await world.kill("barn")
            died.set()

        async with trio.open_nursery() as nursery:
            world.network.watches.append(
                (f"/{method}".encode(), "barn", lambda: nursery.start_soon(kill))
            )
            generation = Generation("attic", Asked(PROMPTS[4], 60, draft_on="barn", num_drafts=3))
            await generate(world.channels, world.address("attic"), generation)
            await died.wait()
        assert generation.status == "OK"
        assert tuple(generation.ids) == true_ids(generation.asked)
        if method == "ProposeBlock":
            assert sum(generation.done.fallbacks.values()) >= 1
        await world.start("barn", seeds=("attic",))
        await trio.sleep(4)  # a circuit's first back-off is a second
        again = await decoded(world, draft_on="barn", num_drafts=3, max_tokens=60)
        assert "barn" in again.drafted_on


@pytest.mark.spec("D-16", "D-18")
async def test_c17_a_proposer_two_seconds_late_is_not_waited_for(autojump_clock):
    async with NodeWorld.open(seed=17) as world:
        await house(world, ("attic", "barn"))
        alone = await decoded(world, plain=True, max_tokens=60)
        await decoded(world, draft_on="barn", num_drafts=3, max_tokens=60)
        world.nodes["barn"].devices["drafting"].slowness = 2000.0
        slow = await decoded(world, draft_on="barn", num_drafts=3, max_tokens=60)
        assert slow.ids == alone.ids
        limits = world.settings.decoding
        # Two drafts run into their wait, then it is demoted; a wait is a few steps of the model.
        waits_s = limits.max_late * max(limits.draft_wait_steps * 0.036, limits.min_draft_wait_s)
        plain_s = alone.ended_s - alone.started_s
        assert slow.ended_s - slow.started_s <= plain_s * 1.25 + waits_s
        assert slow.done.fallbacks["late"] <= limits.max_late


async def test_d04_a_reader_whose_power_fails_frees_its_place(autojump_clock):
    async with NodeWorld.open(seed=4) as world:
        await house(world, ("attic", "barn"))
        world.nodes["attic"].devices["verifying"].slowness = 100.0  # 3 s a block
        async with trio.open_nursery() as nursery:
            generation = Generation("attic", Asked(PROMPTS[4], 400))
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await generation.next_block.wait()
            node = world.nodes["attic"]
            assert busy_with(node)["generations"] == 1
            world.network.down(DESK, says_so=False)
            rpc = world.settings.rpc
            # Silence is noticed by a ping that nobody answers.
            limit_s = rpc.keepalive_s + rpc.keepalive_ack_s + 2 * rpc.check_s + 4
            await world.time_until(lambda: "generations" not in busy_with(node), limit_s=limit_s)
            nursery.cancel_scope.cancel()


async def test_a_stopping_node_ends_its_generation_within_the_drain_limit(autojump_clock):
    async with NodeWorld.open(seed=6) as world:
        await house(world, ("attic", "barn"))
        world.nodes["attic"].devices["verifying"].slowness = 10.0
        async with trio.open_nursery() as nursery:
            generation = Generation("attic", Asked(PROMPTS[4], 400))
            nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await generation.next_block.wait()
            node, start_s = world.nodes["attic"], trio.current_time()
            await world.stop("attic")
            limits = world.settings.node
            spent_s = trio.current_time() - start_s
            assert spent_s <= limits.leave_s + limits.drain_s + 1
        assert generation.status == "UNAVAILABLE"
        assert not tasks_of("attic")
        assert node.num_left_open == 0
        assert not busy_with(node)


@pytest.mark.spec("R-05")
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_call_ends_with_its_deadline_and_at_most_a_job(is_cut, autojump_clock):
    async with NodeWorld.open(seed=7) as world:
        await house(world, ("attic", "barn"))
        node = world.nodes["barn"]
        node.devices["drafting"].slowness = 1000.0  # a second a job, of which this needs two
        stub = ProposerServiceStub(world.channels.to(world.address("barn")))
        request = pb.ProposeBlockRequest(
            committed_token_ids=list(range(1, 40)), block_size=4, num_steps=1, model_id="ngram"
        )
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with trio.move_on_after(0.4), suppress(RpcFailedError):
                    await stub.ProposeBlock(request)

            nursery.start_soon(ask)
            await trio.sleep(0.1)
            if is_cut:  # the caller's own word that it left does not come through
                world.network.cut(DESK, "barn")
        await trio.sleep(1.0)
        assert "jobs" not in busy_with(node)
        assert not [c for c in tasks_of("barn") if c.name.endswith("_handle")]


async def test_a_node_killed_as_soon_as_it_listens_keeps_its_made_up_name(autojump_clock):
    async with NodeWorld.open(seed=15) as world:
        await world.start("porch", node_id="")
        name = world.fleet("porch").node_id
        await world.kill("porch")
        await world.start("porch", node_id="")
        assert world.fleet("porch").node_id == name


async def test_cancelling_at_any_moment_leaves_nothing(autojump_clock):
    async with NodeWorld.open(seed=8) as world:
        await house(world, ("attic", "barn"))
        node = world.nodes["attic"]
        for step in range(40):
            generation = Generation("attic", Asked(PROMPTS[3], 30, draft_on="barn", num_drafts=2))
            with trio.move_on_after(0.0137 * step):
                await generate(world.channels, world.address("attic"), generation)
            await world.time_until(
                lambda: not {"generations", "jobs"} & set(busy_with(node)), limit_s=0.5
            )
        assert (await decoded(world)).ids


async def test_a_full_house_is_refused_and_all_places_come_back(autojump_clock):
    async with NodeWorld.open(seed=9) as world:
        await house(world, ("attic", "barn"))
        limits = world.settings.node
        most = limits.max_generations + limits.max_waiting_generations
        made = [Generation("attic", Asked(PROMPTS[n % 16], 3)) for n in range(most + 10)]
        async with trio.open_nursery() as nursery:
            for generation in made:
                nursery.start_soon(generate, world.channels, world.address("attic"), generation)
        statuses = [generation.status for generation in made]
        assert statuses.count("RESOURCE_EXHAUSTED") == 10
        assert statuses.count("OK") == most
        assert "generations" not in busy_with(world.nodes["attic"])


async def test_a_fleet_is_seen_from_the_desk_as_it_is(autojump_clock):
    async with NodeWorld.open(seed=10) as world:
        await house(world)
        stub = NodeServiceStub(world.channels.to(world.address("barn")))
        answer = await stub.GetFleet(node_pb2.GetFleetRequest(plan=True, role=2))
        assert {node.node_id for node in answer.nodes} == set(NAMES)
        assert all(node.reachable for node in answer.nodes)
        with pytest.raises(RpcFailedError) as caught:
            await NodeServiceStub(world.channels.to("nowhere:1")).GetFleet(
                node_pb2.GetFleetRequest()
            )
        assert status_name(caught.value) == "UNAVAILABLE"


@pytest.mark.spec("R-15")
async def test_a_stopping_node_does_not_wait_for_a_peer_whose_power_failed(autojump_clock):
    async with NodeWorld.open(seed=11) as world:
        await house(world)
        await world.kill("cellar", says_so=False)
        start_s = trio.current_time()
        await world.stop("attic")
        rpc = world.settings.rpc
        limit_s = rpc.keepalive_ack_s + 2 * rpc.check_s + world.settings.fleet.exchange_deadline_s
        assert trio.current_time() - start_s <= limit_s


@pytest.mark.spec("D-03", "D-15")
@pytest.mark.parametrize("manner", MANNERS)
async def test_a_proposer_that_turns_rogue_changes_no_id(manner, autojump_clock):
    async with NodeWorld.open(seed=12) as world:
        await world.start("attic", verifier="sim")
        rogue = Rogue("wrong")  # polite at first: it is asked, and answers in time
        async with trio.open_nursery() as nursery:
            await nursery.start(host_rogue, world, rogue, ("attic",))
            await world.time_until(lambda: "rogue" in world.sees("attic"), limit_s=6)
            await decoded(world, draft_on="rogue", num_drafts=3, max_tokens=30)
            before, rogue.manner = rogue.num_asked, manner
            assert before > 3
            generation = await decoded(
                world, draft_on="rogue", num_drafts=3, max_tokens=100, prompt_ids=PROMPTS[6]
            )
            assert rogue.num_asked > before
            alone = await decoded(world, plain=True, max_tokens=100, prompt_ids=PROMPTS[6])
            took_s = generation.ended_s - generation.started_s
            assert took_s < 1.5 * (alone.ended_s - alone.started_s)
            nursery.cancel_scope.cancel()


@pytest.mark.spec("D-15")
async def test_a_draft_that_is_refused_is_replaced_in_the_same_block(autojump_clock):
    async with NodeWorld.open(seed=13) as world:
        await world.start("attic", verifier="sim")
        rogue = Rogue("wrong")
        async with trio.open_nursery() as nursery:
            await nursery.start(host_rogue, world, rogue, ("attic",))
            await world.time_until(lambda: "rogue" in world.sees("attic"), limit_s=6)
            await decoded(world, draft_on="rogue", num_drafts=3, max_tokens=30)
            rogue.manner = "refuses"
            generation = await decoded(
                world, draft_on="rogue", num_drafts=3, max_tokens=60, prompt_ids=PROMPTS[6]
            )
            after = [at_s > rogue.refused_s for at_s in generation.heard_s].index(True)
            num_drafts, drafted_on = generation.blocks[after]
            assert (num_drafts, drafted_on) == (3, "attic")
            nursery.cancel_scope.cancel()


async def test_a_reader_that_leaves_the_queue_frees_its_place_in_it(autojump_clock):
    async with NodeWorld.open(seed=14) as world:
        await house(world, ("attic", "barn"))
        node, limits = world.nodes["attic"], world.settings.node
        node.devices["verifying"].slowness = 10.0
        async with trio.open_nursery() as nursery:
            for n in range(limits.max_generations):
                generation = Generation("attic", Asked(PROMPTS[n], 100))
                nursery.start_soon(generate, world.channels, world.address("attic"), generation)
            await trio.sleep(0.1)
            leaves = trio.CancelScope()  # no deadline: the node does not know when it is over

            async def wait() -> None:
                last = Generation("attic", Asked(PROMPTS[9]))
                with leaves:
                    await generate(world.channels, world.address("attic"), last)

            nursery.start_soon(wait)
            await trio.sleep(0.1)
            assert busy_with(node)["waiting generations"] == 1
            leaves.cancel()
            await trio.sleep(0.05)
            assert busy_with(node)["generations"] == limits.max_generations
            assert "waiting generations" not in busy_with(node)
            nursery.cancel_scope.cancel()
