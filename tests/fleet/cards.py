"""Cards as peers would send them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.card import Bad, Card, decode
from kakeya.fleet.frames import framed
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb

NOW = 1_700_000_000.0
LIMITS = FleetLimits()
NGRAM = {"model_id": "ngram", "role": 2, "quantization": "none", "tokens_per_second": 1234.5}
SMOLLM2 = {
    "model_id": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "role": 1,
    "quantization": "bf16",
    "tokens_per_second": 44.5,
}
DFLASH = {
    "model_id": "z-lab/Qwen3-8B-DFlash-b16",
    "role": 2,
    "quantization": "bf16",
    "tokens_per_second": 310.0,
}


def message(
    node_id: str = "attic",
    *,
    stamp: float = NOW,
    models: Sequence[dict[str, Any]] = (NGRAM,),
    **more,
) -> pb.NodeCapability:
    fields = {
        "grpc_address": "10.0.0.2:50051",
        "platform": "linux-x86",
        "unified_memory_bytes": 16 << 30,
        "ttl_seconds": 120.0,
        **more,
    }
    return pb.NodeCapability(
        node_id=node_id,
        announced_at_unix=stamp,
        models=[pb.ModelCapability(**model) for model in models],
        **fields,
    )


def frame(node_id: str = "attic", **fields: Any) -> bytes:
    return framed(message(node_id, **fields).SerializeToString())


def card(node_id: str = "attic", **fields: Any) -> Card:
    read = decode(frame(node_id, **fields), now_unix=fields.get("stamp", NOW), limits=LIMITS)
    assert isinstance(read, Card), read
    return read


def reason(card_frame: bytes, now_unix: float = NOW) -> str:
    """Why the card is not taken, "" when it is."""
    read = decode(card_frame, now_unix=now_unix, limits=LIMITS)
    return read.reason if isinstance(read, Bad) else ""


def fleet_of(num_cards: int, *, stamp: float = NOW) -> list[bytes]:
    """Frames of about 200 bytes, as a real fleet has them."""
    return [
        frame(
            f"node-{n:05d}",
            stamp=stamp,
            grpc_address=f"10.1.{n // 250}.{n % 250}:50051",
            models=(NGRAM, SMOLLM2, DFLASH),
        )
        for n in range(num_cards)
    ]
