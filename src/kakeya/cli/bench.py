"""`kakeya bench`: speculation against plain decoding, in turns on one node, with the ids compared.

`kakeya bench rpc` runs the RPC layer's benchmark of a checkout.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from kakeya.cli.bench_prompts import PROMPTS
from kakeya.cli.client import refusal_of
from kakeya.cli.embedded import far_stub, node_stub
from kakeya.cli.exit_codes import Exit
from kakeya.cli.flags import NodeFlags, load_command_settings
from kakeya.cli.generate import (
    GenerateFlags,
    chosen_proposer,
    gathered,
    mean_acceptance_length,
    read_prompts,
    report,
    request_for,
)
from kakeya.config.settings import Settings
from kakeya.errors import Refused, demand
from kakeya.fleet.card import ROLE_PROPOSER
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# Keeps one core busy until it is killed.
BURN = "while True: pass"
# What node.max_generations and its queue take by default.
MAX_CONCURRENCY = 64
# Two nodes on one host meet in a second; a loaded one takes longer.
MEET_S = 30.0
RPC_BENCH = "tests.bench.rpc_bench"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    node: Annotated[str | None, Parameter(help="HOST:PORT of the node to ask.")] = None
    embedded: Annotated[bool, Parameter(negative="", help="Run a node in this process.")] = False
    prompt_file: Annotated[
        str | None, Parameter(help="Prompts of your own: one JSON string a line.")
    ] = None
    max_tokens: Annotated[int, Parameter(help="Most tokens a generation.")] = 64
    rounds: Annotated[int, Parameter(help="Times each pair is measured.")] = 3
    concurrency: Annotated[int, Parameter(help="Generations at once; their speeds add up.")] = 1
    rtt: Annotated[
        str, Parameter(help="Draft on a second embedded node this far away, such as 50ms.")
    ] = ""
    busy: Annotated[bool, Parameter(negative="", help="Keep one core busy meanwhile.")] = False
    verify: Annotated[bool, Parameter(negative="", help="Only compare the ids.")] = False
    json: Annotated[bool, Parameter(negative="", help="Print JSON.")] = False


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt decoded plainly and with drafts, one right after the other.

    kind: of prompt.  draft_on: what was asked for: auto, local, remote or a node_id.  asked: the
    proposer that was named, "" for any.
    """

    kind: str
    draft_on: str
    asked: str
    plain: dict[str, Any]
    drafted: dict[str, Any]

    @property
    def ids_equal(self) -> bool:
        return bool(self.plain["ids"] == self.drafted["ids"])

    @property
    def ratio(self) -> float:
        """How many times faster than plain decoding."""
        plain_rate = float(self.plain["timings"]["tokens_per_second"])
        return float(self.drafted["timings"]["tokens_per_second"]) / max(plain_rate, 1e-9)


def bench(
    what: str = "", *rest: str, given: BenchFlags | None = None, flags: NodeFlags | None = None
) -> int:
    """Measure speculation against plain decoding, side by side.

    Parameters
    ----------
    what
        Nothing, or rpc: the RPC layer beside grpc.aio and others (in a checkout).
    """
    asked = given or BenchFlags()
    if what == "rpc":
        given_rounds = ["--rounds", str(asked.rounds)] if asked.rounds != BenchFlags.rounds else []
        return _bench_rpc([*rest, *given_rounds, *(["--json"] if asked.json else [])])
    demand(not what, "INVALID_ARGUMENT", f"no benchmark {what!r}; there is rpc, or none named")
    demand(asked.rounds >= 1, "INVALID_ARGUMENT", f"--rounds is {asked.rounds}, at least 1")
    demand(
        1 <= asked.concurrency <= MAX_CONCURRENCY,
        "INVALID_ARGUMENT",
        f"--concurrency is {asked.concurrency}, at least 1 and at most {MAX_CONCURRENCY}",
    )
    demand(not (asked.rtt and asked.node), "INVALID_ARGUMENT", "--rtt needs nodes of its own")
    settings = load_command_settings(flags)
    burning = subprocess.Popen([sys.executable, "-c", BURN]) if asked.busy else None
    try:
        pairs = trio.run(_measure, asked, flags or NodeFlags(), settings)
    finally:
        if burning is not None:
            burning.kill()
            burning.wait()
    kinds = dict.fromkeys((pair.kind, pair.draft_on, pair.asked) for pair in pairs)
    rows = [summary(*kind, pairs) for kind in kinds]
    if asked.json:
        print(msgspec.json.encode({"runs": rows}).decode())
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(as_table(rows))
    return Exit.OK if all(row["ids_equal"] for row in rows) else Exit.FAILURE


def _bench_rpc(arguments: list[str]) -> int:
    demand(
        importlib.util.find_spec("tests") is not None
        and importlib.util.find_spec(RPC_BENCH) is not None,
        "UNAVAILABLE",
        "the RPC benchmark is part of the checkout; run it there with `just bench rpc`",
    )
    return subprocess.run([sys.executable, "-m", RPC_BENCH, *arguments], check=False).returncode


async def _measure(asked: BenchFlags, flags: NodeFlags, settings: Settings) -> list[Pair]:
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


def seconds_of(text: str) -> float:
    """50ms, 0.05s or 0.05 in seconds.  Raises Refused."""
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    demand(0 < seconds <= 10, "INVALID_ARGUMENT", f"--rtt is {text!r}, such as 50ms, at most 10s")
    return seconds


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


def joined(reports: list[dict[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """Generations that ran at once as if one: prefill and waiting count into their speed."""
    ids = [token_id for report in reports for token_id in report["ids"]]
    timings = reports[0]["timings"] | {"tokens_per_second": len(ids) / elapsed_s}
    blocks = [block for report in reports for block in report["blocks"]]
    return reports[0] | {"ids": ids, "blocks": blocks, "timings": timings}


def summary(kind: str, draft_on: str, asked: str, pairs: list[Pair]) -> dict[str, Any]:
    """One row: all pairs of a kind of prompt, drafted in one place by one proposer."""
    wanted = (kind, draft_on, asked)
    mine = [pair for pair in pairs if (pair.kind, pair.draft_on, pair.asked) == wanted]
    blocks = [b for pair in mine for b in pair.drafted["blocks"] if b["num_drafts"]]
    return {
        "kind": kind,
        "prompts": len(mine),
        "draft_on": draft_on,
        "asked": asked or None,
        "proposer": ", ".join(sorted({b["proposer"] or "" for b in blocks})) or None,
        "drafted_on": sorted({b["drafted_on"] or "" for b in blocks}),
        "tokens_per_second": _median(p.drafted["timings"]["tokens_per_second"] for p in mine),
        "plain_tokens_per_second": _median(p.plain["timings"]["tokens_per_second"] for p in mine),
        "prefill_s": _median(p.drafted["timings"]["prefill_s"] for p in mine),
        "ratio": _median(p.ratio for p in mine),
        "mean_acceptance_length": round(mean_acceptance_length(blocks), 3),
        "acceptance_by_position": acceptance_by_position(blocks),
        "ids_equal": all(pair.ids_equal for pair in mine),
    }


def _median(values: Any) -> float:
    return round(float(statistics.median(values)), 3)


def acceptance_by_position(blocks: list[dict[str, Any]]) -> list[float]:
    """Per position: blocks that had it accepted, over blocks that offered it."""
    longest = max((block["num_drafts"] for block in blocks), default=0)
    shares = []
    for position in range(longest):
        offered = [block for block in blocks if block["num_drafts"] > position]
        accepted = [block for block in offered if block["num_accepted"] > position]
        shares.append(round(len(accepted) / len(offered), 3))
    return shares


def drafted_by(row: dict[str, Any]) -> str:
    """Whom a row's drafts came from, behind the proposer that was named."""
    asked = f"{row['asked']}: " if row["asked"] else ""
    return f"{asked}{row['proposer'] or '-'} on {', '.join(row['drafted_on']) or '-'}"


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    columns = (
        "prompts", "drafted by", "prefill s", "plain tokens/s", "tokens/s", "ratio",
        "acceptance length", "accepted by position", "ids",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(
            f"{row['kind']} ({row['prompts']})",
            drafted_by(row),
            f"{row['prefill_s']:.2f}",
            f"{row['plain_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['mean_acceptance_length']:.2f}",
            " ".join(f"{share:.2f}" for share in row["acceptance_by_position"][:6]) or "-",
            "equal" if row["ids_equal"] else "DIFFERENT",
        )
    return table
