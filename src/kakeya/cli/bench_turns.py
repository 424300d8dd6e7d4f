"""Generations in turns: plainly and with drafts, each prompt right after itself."""

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import trio

from kakeya.cli.bench_flags import BenchFlags, seconds_of
from kakeya.cli.bench_prompts import PROMPTS
from kakeya.cli.bench_rows import Pair, joined
from kakeya.cli.client import refusal_of
from kakeya.cli.embedded import far_stub, node_stub
from kakeya.cli.flags import NodeFlags
from kakeya.cli.generate import (
    gathered,
    read_prompts,
    report,
)
from kakeya.cli.generate_flags import GenerateFlags, chosen_proposer, request_for
from kakeya.config.settings import Settings
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# Two nodes on one host meet in a second; a loaded one takes longer.
MEET_S = 30.0


async def measure(asked: BenchFlags, flags: NodeFlags, settings: Settings) -> list[Pair]:
    prompts = _prompts(asked)
    async with _stub(asked, settings) as stub:
        try:
            if asked.rtt:
                await _until_somebody_drafts(stub)
            return await _pairs(stub, prompts, asked, await _ways_of(stub, flags))
        except RpcFailedError as error:
            refused = refusal_of(error)
    raise refused


def _stub(asked: BenchFlags, settings: Settings) -> AbstractAsyncContextManager[NodeServiceStub]:
    if asked.rtt:
        return far_stub(settings, seconds_of(asked.rtt))
    return node_stub(node=asked.node, embedded=asked.embedded, settings=settings)


async def _until_somebody_drafts(stub: NodeServiceStub) -> None:
    with trio.move_on_after(MEET_S):
        while await _ways(stub) == ["auto"]:  # noqa: ASYNC110 - other nodes change it
            await trio.sleep(0.1)
        return
    raise Refused("UNAVAILABLE", f"the two nodes have not met within {MEET_S:.0f} s")


def _prompts(asked: BenchFlags) -> list[tuple[str, str]]:
    if asked.prompt_file is None:
        return list(PROMPTS)
    given = GenerateFlags(prompt_file=asked.prompt_file)
    return [("given", text) for text in read_prompts("", given)]


async def _ways_of(stub: NodeServiceStub, flags: NodeFlags) -> list[NodeFlags]:
    """How to draft: by each proposer that was named, wherever it is; else here and on the fleet."""
    if flags.proposer:
        return [replace(flags, proposer=(each,)) for each in flags.proposer]
    ways = [flags.draft_on] if flags.draft_on else await _ways(stub)
    return [replace(flags, draft_on=way) for way in ways]


async def _ways(stub: NodeServiceStub) -> list[str]:
    """Where to draft: here and on the fleet, when somebody else drafts; else as the node does."""
    view = await stub.GetFleet(pb.GetFleetRequest())
    others = [each for each in view.nodes if each.node_id != view.self_node_id and each.reachable]
    drafts = any(model.role == ROLE_PROPOSER for each in others for model in each.models)
    return ["local", "remote"] if drafts else ["auto"]


async def _pairs(
    stub: NodeServiceStub,
    prompts: list[tuple[str, str]],
    asked: BenchFlags,
    ways: list[NodeFlags],
) -> list[Pair]:
    found = []
    for flags in ways:
        await _one(stub, request_for(prompts[0][1], GenerateFlags(max_tokens=4), flags))  # warm
    given = GenerateFlags(max_tokens=asked.max_tokens)
    for number in range(1 if asked.verify else asked.rounds):
        for (kind, text), flags in itertools.product(prompts, ways):
            drafted = request_for(text, given, flags)
            plain = request_for(text, replace(given, plain=True), flags)
            # Whoever goes first may find a cooler machine: take turns.
            if number % 2:
                second = await _many(stub, drafted, asked.concurrency)
                first = await _many(stub, plain, asked.concurrency)
            else:
                first = await _many(stub, plain, asked.concurrency)
                second = await _many(stub, drafted, asked.concurrency)
            found.append(
                Pair(kind, flags.draft_on or "auto", chosen_proposer(flags), first, second)
            )
    return found


async def _one(stub: NodeServiceStub, request: pb.GenerateRequest) -> dict[str, Any]:
    return report(await gathered(stub, request, lambda text: None))


async def _many(stub: NodeServiceStub, request: pb.GenerateRequest, num: int) -> dict[str, Any]:
    """One report of `num` generations at once: blocks of all, speed in all, first token to last."""
    if num == 1:
        return await _one(stub, request)
    reports: list[dict[str, Any]] = []
    errors: list[RpcFailedError] = []

    async def one() -> None:
        try:
            reports.append(await _one(stub, request))
        except RpcFailedError as error:
            errors.append(error)

    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(num):
            nursery.start_soon(one)
    if errors:
        raise errors[0]
    return joined(reports, trio.current_time() - started_s)
