"""Generations in turns: each prompt in every way, one right after the other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import trio

from kakeya.cli.bench_flags import BenchFlags, concurrencies_of
from kakeya.cli.bench_ground import MEET_S, Ground, ground
from kakeya.cli.bench_prompts import Prompt, prompts_for
from kakeya.cli.bench_rows import PLAIN, Pair, Way, joined
from kakeya.cli.client import refusal_of
from kakeya.cli.flags import NodeFlags
from kakeya.cli.generate import gathered, report
from kakeya.cli.generate_flags import GenerateFlags, request_for
from kakeya.config.settings import Settings
from kakeya.errors import Refused
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# Repeats, so that there is something to copy, and is long enough for a session to be opened.
WARM = Prompt("warm", "one two three, one two three, one two three, ", is_raw=True)
WARM_LEN, WARM_DRAFTS = 8, "4"
# A session is opened beside the verifier's steps; so many are enough for one.
DRAFTED_WITHIN_LEN = 256


async def measure(asked: BenchFlags, flags: NodeFlags, settings: Settings) -> list[Pair]:
    """Raises Refused."""
    prompts = prompts_for(asked, settings)
    async with ground(asked, flags, settings) as there:
        try:
            for way in there.ways:
                await until_it_drafts(there.stub, way, flags)
            return await _pairs(there, prompts, asked, flags)
        except RpcFailedError as error:
            refused = refusal_of(error)
        except Refused as error:
            refused = error
    raise refused


async def until_it_drafts(stub: NodeServiceStub, way: Way, flags: NodeFlags) -> None:
    """Warm a way up; where somebody has to draft, until they did.  Raises Refused."""
    if way.expected is None:
        await one(stub, request_of(WARM, way, max_tokens=WARM_LEN, flags=flags))
        return
    fixed = replace(flags, num_drafts=WARM_DRAFTS)
    request = request_of(WARM, way, max_tokens=DRAFTED_WITHIN_LEN, flags=fixed)
    with trio.move_on_after(MEET_S):
        while not await _is_drafted(stub, request, *way.expected):  # noqa: ASYNC110 - nodes meet
            await trio.sleep(0.1)
        return
    raise Refused("UNAVAILABLE", f"nothing was drafted by {way.name} within {MEET_S:.0f} s")


async def _is_drafted(
    stub: NodeServiceStub, request: pb.GenerateRequest, proposer: str, node_id: str
) -> bool:
    """Whether that proposer there drafts a block of it; leaves with the first one."""
    async with aclosing(stub.Generate(request)) as events:
        async for event in events:
            if (event.block.proposer, event.block.drafted_on) == (proposer, node_id):
                return True
    return False


async def _pairs(
    there: Ground, prompts: Sequence[Prompt], asked: BenchFlags, flags: NodeFlags
) -> list[Pair]:
    found = []
    concurrency = concurrencies_of(asked.concurrency)[0]
    ways = list(dict.fromkeys([PLAIN, *there.ways]))
    for number in range(1 if asked.verify else asked.rounds):
        for prompt in prompts:
            reports: dict[Way, dict[str, Any]] = {}
            # Whoever goes first may find a cooler machine: take turns.
            for way in reversed(ways) if number % 2 else ways:
                request = request_of(prompt, way, max_tokens=asked.max_tokens, flags=flags)
                reports[way] = await _many(there.stub, request, concurrency)
            found += [Pair(prompt.kind, way, reports[PLAIN], reports[way]) for way in there.ways]
    return found


def request_of(
    prompt: Prompt, way: Way, *, max_tokens: int, flags: NodeFlags
) -> pb.GenerateRequest:
    """`prompt` decoded in one way, with what `flags` say besides.  Raises Refused."""
    given = GenerateFlags(max_tokens=max_tokens, plain=way.is_plain, raw=prompt.is_raw)
    proposer = (way.proposer,) if way.proposer else None
    return request_for(prompt.text, given, replace(flags, proposer=proposer, draft_on=way.draft_on))


async def one(stub: NodeServiceStub, request: pb.GenerateRequest) -> dict[str, Any]:
    """One generation's report.  Raises RpcFailedError."""
    return report(await gathered(stub, request, lambda text: None))


async def _many(stub: NodeServiceStub, request: pb.GenerateRequest, num: int) -> dict[str, Any]:
    """One report of `num` generations of a prompt: blocks of all, speed in all."""
    if num == 1:
        return await one(stub, request)
    reports, elapsed_s = await at_once(stub, [request] * num)
    return joined(reports, elapsed_s)


async def at_once(
    stub: NodeServiceStub, requests: Sequence[pb.GenerateRequest]
) -> tuple[list[dict[str, Any]], float]:
    """Reports of generations that run together, and how long they all took (s).

    Raises RpcFailedError.
    """
    reports: dict[int, dict[str, Any]] = {}
    errors: list[RpcFailedError] = []

    async def run(number: int, request: pb.GenerateRequest) -> None:
        try:
            reports[number] = await one(stub, request)
        except RpcFailedError as error:
            errors.append(error)

    started_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(run, number, request)
    if errors:
        raise errors[0]
    return [reports[number] for number in sorted(reports)], trio.current_time() - started_s
