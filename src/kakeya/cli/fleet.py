"""`kakeya fleet`: who is there, as one node sees it; `--plan` explains who would draft."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from kakeya.cli.client import local_address, refusal_of, stub_at
from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.settings import Settings
from kakeya.console.fleet_view import node_json
from kakeya.errors import demand
from kakeya.fleet.card import ROLE_PROPOSER
from kakeya.fleet.placement import ROLE_NAMES
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb

# A node answers from memory; longer means it is stuck.
ANSWER_S = 5.0


def fleet(
    action: Annotated[str, Parameter(help="plan: explain who would draft, and why.")] = "",
    *,
    node: Annotated[str | None, Parameter(help="HOST:PORT of the node to ask.")] = None,
    model: Annotated[str, Parameter(help="With plan: only this proposer model.")] = "",
    json: Annotated[bool, Parameter(negative="", help="Print JSON.")] = False,
    flags: NodeFlags | None = None,
) -> int:
    """Show the fleet as a node sees it: a table, or JSON."""
    demand(action in ("", "plan"), "INVALID_ARGUMENT", f"no action {action!r}; there is plan")
    settings = load_settings(flags).settings
    request = pb.GetFleetRequest(plan=action == "plan", role=ROLE_PROPOSER, model_id=model)
    answer = trio.run(_ask, request, node, settings)
    if action == "plan":
        lines = list(answer.plan_lines)
        print(msgspec.json.encode({"plan": lines}).decode() if json else "\n".join(lines))
    elif json:
        print(msgspec.json.encode(as_json(answer)).decode())
    else:
        # Piped output has no width of its own; a cut address is of no use to anybody.
        Console(width=None if sys.stdout.isatty() else 240).print(as_table(answer))
    return 0


async def _ask(request: pb.GetFleetRequest, node: str | None, settings: Settings) -> Any:
    address = await local_address(settings, node)
    refused = None
    async with stub_at(address, settings) as stub:
        try:
            with trio.fail_after(ANSWER_S):
                return await stub.GetFleet(request)
        except RpcFailedError as error:
            refused = refusal_of(error)
    raise refused


def as_json(answer: pb.GetFleetResponse) -> dict[str, Any]:
    """The stable shape of `fleet --json`."""
    return {
        "self": answer.self_node_id,
        "fleet_name": answer.fleet_name,
        "version": answer.version,
        "nodes": [node_json(node) for node in answer.nodes],
    }


def as_table(answer: pb.GetFleetResponse) -> Table:
    table = Table(title=f"fleet {answer.fleet_name}", title_justify="left", box=None)
    for header in ("node", "address", "age", "reachable", "platform", "memory", "offers"):
        table.add_column(header, no_wrap=True)
    for node in answer.nodes:
        mark = " (this)" if node.node_id == answer.self_node_id else ""
        conflict = f" ! also at {node.conflict_address}" if node.conflict_address else ""
        offers = ", ".join(
            f"{m.model_id} {ROLE_NAMES.get(m.role, m.role)}"
            + (f" {m.tokens_per_second:.0f}/s" if m.tokens_per_second else "")
            for m in node.models
        )
        table.add_row(
            node.node_id + mark + conflict,
            node.grpc_address,
            f"{node.age_s:.0f} of {node.ttl_s:.0f} s",
            "yes" if node.reachable else "seen, not reachable from here",
            node.platform,
            f"{node.memory_bytes / (1 << 30):.0f} GiB",
            offers,
        )
    return table
