"""Where a benchmark decodes: a node that runs already, one in this process, or a pair of its own.

And which ways of decoding are compared there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from kakeya.cli.bench_flags import BenchFlags, seconds_of
from kakeya.cli.bench_nodes import NodePair, node_pair
from kakeya.cli.bench_rows import PLAIN, Way
from kakeya.cli.client import stub_at
from kakeya.cli.embedded import node_stub
from kakeya.cli.flags import NodeFlags
from kakeya.config.settings import Settings
from kakeya.drafting.ngram import NGRAM
from kakeya.embedded.drafters import proposer_id
from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# Two nodes on one host meet in a second and load their models in two; a loaded one takes longer.
MEET_S = 60.0


@dataclass(frozen=True, slots=True)
class Ground:
    """The node to ask, and the ways to compare.  pair: the processes, where they are our own."""

    stub: NodeServiceStub
    ways: tuple[Way, ...]
    pair: NodePair | None = None


def wants_pair(asked: BenchFlags, flags: NodeFlags) -> bool:
    """Whether the benchmark starts a verifying and a drafting node, each a process."""
    return not asked.node and not asked.embedded and bool(asked.rtt or flags.proposer)


@asynccontextmanager
async def ground(asked: BenchFlags, flags: NodeFlags, settings: Settings) -> AsyncIterator[Ground]:
    """Spec: N-17.  Raises Refused."""
    if not wants_pair(asked, flags):
        async with node_stub(node=asked.node, embedded=asked.embedded, settings=settings) as stub:
            yield Ground(stub, await _ways_there(stub, flags))
        return
    rtt_s = seconds_of(asked.rtt) if asked.rtt else 0.0
    async with (
        node_pair(flags, settings, rtt_s=rtt_s) as pair,
        stub_at(pair.verifying.grpc_address, settings) as stub,
    ):
        await until_they_met(stub, pair)
        yield Ground(stub, ways_of_pair(pair, flags.draft_on or "", is_far=rtt_s > 0), pair)


async def until_they_met(stub: NodeServiceStub, pair: NodePair) -> None:
    """Until the verifying node knows that both serve every proposer.  Raises Refused."""
    wanted = {
        (node.node_id, each) for node in (pair.verifying, pair.drafting) for each in pair.proposers
    }
    with trio.move_on_after(MEET_S):
        while not wanted <= await _proposers(stub):  # noqa: ASYNC110 - other nodes change it
            await trio.sleep(0.1)
        return
    raise Refused(
        "UNAVAILABLE",
        f"the two nodes do not both serve {', '.join(pair.proposers)} within {MEET_S:.0f} s",
    )


async def _proposers(stub: NodeServiceStub) -> set[tuple[str, str]]:
    """(node_id, model_id) of all that draft."""
    view = await stub.GetFleet(pb.GetFleetRequest())
    return {
        (node.node_id, model.model_id)
        for node in view.nodes
        for model in node.models
        if model.role == ROLE_PROPOSER
    }


def ways_of_pair(pair: NodePair, draft_on: str, *, is_far: bool) -> tuple[Way, ...]:
    """Plain, n-gram, each proposer on the other node and in the verifier's process, and any.

    draft_on: where the proposers that were named draft, when that was said; "": both.  is_far: the
    other node may be too far away for its drafts to be waited for.
    """
    here, there = pair.verifying.node_id, pair.drafting.node_id
    ways = [PLAIN, Way(NGRAM, "local", NGRAM)]
    for each in pair.proposers:
        if draft_on != "local":
            # Whoever copies is only probed beside a step, and a quick step is over too soon.
            expected = None if is_far or each == NGRAM else (each, there)
            ways.append(Way(f"{each} remote", "remote", each, expected=expected))
        if draft_on != "remote" and each != NGRAM:
            ways.append(Way(f"{each} in process", "local", each, expected=(each, here)))
    if set(pair.proposers) != {NGRAM} and not draft_on:
        ways.append(Way("as the node does", "auto"))
    return tuple(ways)


async def _ways_there(stub: NodeServiceStub, flags: NodeFlags) -> tuple[Way, ...]:
    """By each proposer that was named, wherever it is; else here and on the fleet."""
    draft_on = flags.draft_on or "auto"
    named = [proposer_id(each) for each in flags.proposer or ()]
    if named:
        return tuple(Way(each, draft_on, each) for each in named)
    places = [draft_on] if flags.draft_on else await _places(stub)
    return tuple(Way(place, place) for place in places)


async def _places(stub: NodeServiceStub) -> Sequence[str]:
    """Where to draft: here and on the fleet, when somebody else drafts; else as the node does."""
    view = await stub.GetFleet(pb.GetFleetRequest())
    others = [each for each in view.nodes if each.node_id != view.self_node_id and each.reachable]
    drafts = any(model.role == ROLE_PROPOSER for each in others for model in each.models)
    return ("local", "remote") if drafts else ("auto",)


__all__ = ["MEET_S", "Ground", "ground", "until_they_met", "wants_pair", "ways_of_pair"]
