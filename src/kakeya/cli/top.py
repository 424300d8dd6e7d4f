"""`kakeya top`: what a node is doing, renewed on the terminal until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import trio
from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kakeya.cli.client import local_address, refusal_of, stub_at
from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.settings import Settings
from kakeya.errors import Refused, demand
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

# A node answers from memory; longer means it is stuck.
ANSWER_S = 5.0
BAR_LEN = 20
MAX_POSITIONS = 8


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TopFlags:
    node: Annotated[str | None, Parameter(help="HOST:PORT of the node to ask.")] = None
    every: Annotated[float, Parameter(help="Seconds between two looks.")] = 2.0
    once: Annotated[bool, Parameter(negative="", help="Look once and end.")] = False
    json: Annotated[bool, Parameter(negative="", help="Look once and print JSON.")] = False


def top(*, given: TopFlags | None = None, flags: NodeFlags | None = None) -> int:
    """Show what a node does: its fleet, its generations, and what speculation brings."""
    asked = given or TopFlags()
    demand(asked.every > 0, "INVALID_ARGUMENT", f"--every is {asked.every}, it must be above 0")
    trio.run(_watch, asked, load_settings(flags).settings)
    return 0


async def _watch(asked: TopFlags, settings: Settings) -> None:
    address = await local_address(settings, asked.node)
    refused: Refused | None = None
    async with stub_at(address, settings) as stub:
        try:
            if asked.json:
                print(await _overview(stub), flush=True)
            elif asked.once or not sys.stdout.isatty():
                width = None if sys.stdout.isatty() else 160
                Console(width=width).print(rendered(await _view(stub)))
            else:
                await _live(stub, asked.every)
        except RpcFailedError as error:
            refused = refusal_of(error)
        except trio.TooSlowError:
            refused = Refused(
                "DEADLINE_EXCEEDED", f"{address} has not answered in {ANSWER_S:.0f} s"
            )
    if refused is not None:
        raise refused


async def _live(stub: NodeServiceStub, every_s: float) -> None:
    with Live(rendered(await _view(stub)), auto_refresh=False, screen=True) as live:
        while True:
            await trio.sleep(every_s)
            live.update(rendered(await _view(stub)), refresh=True)


async def _view(stub: NodeServiceStub) -> dict[str, Any]:
    return msgspec.json.decode(await _overview(stub), type=dict[str, Any])


async def _overview(stub: NodeServiceStub) -> str:
    with trio.fail_after(ANSWER_S):
        return str((await stub.GetOverview(pb.GetOverviewRequest())).json)


def rendered(view: Mapping[str, Any]) -> RenderableType:
    """The whole screen of one look."""
    return Group(_head(view), Text(), _speculation(view["speculation"]), Text(), _nodes(view))


def _head(view: Mapping[str, Any]) -> Text:
    verifier, counts = view["verifier"], view["generations"]
    serving = f"{verifier['model_id']} ({verifier['state']})" if verifier else "drafts only"
    return Text.assemble(
        (view["self"], "bold"),
        f"  fleet {view['fleet_name']}  {serving}",
        f"  {counts['running']} running, {counts['waiting']} waiting",
        f"  {view['sessions']['open']} sessions",
    )


def _speculation(figures: Mapping[str, Any]) -> RenderableType:
    rate, plain, ratio = (
        _figure(figures[key]) for key in ("tokens_per_second", "plain_tokens_per_second", "ratio")
    )
    line = Text(
        f"{rate} tokens/s, {plain} without drafts ({ratio} ×);"
        f" acceptance length {figures['mean_acceptance_length']:.2f},"
        f" {figures['accepted']} of {figures['drafts']} drafts"
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    for place, share in enumerate(figures["acceptance_by_position"][:MAX_POSITIONS], 1):
        filled = round(BAR_LEN * share)
        table.add_row(str(place), "█" * filled + "░" * (BAR_LEN - filled), f"{share:.0%}")
    return Group(line, table)


def _nodes(view: Mapping[str, Any]) -> Table:
    table = Table(box=None)
    for header in ("node", "address", "last heard", "reachable", "platform", "offers"):
        table.add_column(header, no_wrap=header != "offers")
    for node in view["nodes"]:
        mark = " (this)" if node["node_id"] == view["self"] else ""
        conflict = f" ! also at {node['conflict_address']}" if node["conflict_address"] else ""
        offers = ", ".join(
            f"{each['model_id']} {each['role']} {each['tokens_per_second']:.0f}/s"
            for each in node["models"]
        )
        # Text, not markup: names come from other machines.
        table.add_row(
            Text(node["node_id"] + mark + conflict),
            Text(node["grpc_address"]),
            f"{node['age_s']:.0f} s ago",
            "yes" if node["reachable"] else "no",
            Text(node["platform"]),
            Text(offers),
        )
    return table


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
