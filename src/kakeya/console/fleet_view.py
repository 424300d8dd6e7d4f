"""The fleet as the console's messages carry it.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from kakeya.fleet.card import Model
from kakeya.fleet.membership import Fleet, NodeRow
from kakeya.fleet.placement import ROLE_NAMES, NobodyQualifies, no_preference
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb

# (address, model) → rank of a proposer, lower ones first.
Prefers = Callable[[str, Model], int]
VERSION = version("kakeya")


def fleet_response(
    fleet: Fleet, request: pb.GetFleetRequest, prefers: Prefers = no_preference
) -> pb.GetFleetResponse:
    """All nodes and, when asked for, why placement would choose as it does."""
    return pb.GetFleetResponse(
        self_node_id=fleet.node_id,
        fleet_name=fleet.fleet_name,
        version=VERSION,
        nodes=[_node(row) for row in fleet.nodes()],
        plan_lines=plan_lines(fleet, request, prefers) if request.plan else (),
    )


def plan_lines(
    fleet: Fleet, request: pb.GetFleetRequest, prefers: Prefers = no_preference
) -> list[str]:
    try:
        return list(fleet.plan(request.role, request.model_id, prefers=prefers).lines)
    except NobodyQualifies as missing:
        return [missing.why, *missing.lines]


def _node(row: NodeRow) -> pb.FleetNode:
    return pb.FleetNode(
        node_id=row.node_id,
        grpc_address=row.grpc_address,
        age_s=row.age_s,
        ttl_s=row.ttl_s,
        reachable=row.reachable,
        platform=row.platform,
        memory_bytes=row.memory_bytes,
        mlx_version=row.mlx_version,
        clock_skew_s=row.clock_skew_s,
        conflict_address=row.conflict_address,
        models=[
            pb.OfferedModel(
                model_id=model.model_id,
                role=model.role,
                quantization=model.quantization,
                tokens_per_second=model.tokens_per_second,
            )
            for model in row.models
        ],
    )


def node_json(row: NodeRow | pb.FleetNode) -> dict[str, Any]:
    """One node as `fleet --json` and the page show it."""
    return {
        "node_id": row.node_id,
        "grpc_address": row.grpc_address,
        "age_s": round(row.age_s, 3),
        "ttl_s": row.ttl_s,
        "reachable": row.reachable,
        "platform": row.platform,
        "memory_bytes": row.memory_bytes,
        "mlx_version": row.mlx_version,
        "clock_skew_s": round(row.clock_skew_s, 3),
        "conflict_address": row.conflict_address or None,
        "models": [
            {
                "model_id": model.model_id,
                "role": ROLE_NAMES.get(model.role, str(model.role)),
                "quantization": model.quantization,
                "tokens_per_second": model.tokens_per_second,
            }
            for model in row.models
        ],
    }
