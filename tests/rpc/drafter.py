"""A servicer of messages with tensors, in both forms, for the RPC tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kakeya.config.wire import WireLimits
from kakeya.wire import bulk
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import DFlashProposerServiceServicer
from kakeya.wire.tensor import WireArray, decode, encode, viewed

WIRE = WireLimits()
READERS = bulk.readers(WIRE)
FORMS = {"bulk": bulk, "pb": pb}


def array(rows: int, value: int = 0) -> WireArray:
    """[1, rows, 512] of bfloat16 bits that differ from row to row."""
    bits = np.arange(rows * 512, dtype=np.uint32) % 65521 + value
    return WireArray("bfloat16", bits.astype(np.uint16).reshape(1, rows, 512))


def tensor(form: str, rows: int, value: int = 0) -> Any:
    made = array(rows, value)
    return viewed(made) if form == "bulk" else encode(made)


@dataclass
class Drafter(DFlashProposerServiceServicer):
    """Keeps the aux it is sent, and restores two layers of as many rows as the prompt is long."""

    form: str = "bulk"
    heard: list[Any] = field(default_factory=list)

    async def SeedContext(self, input_message):  # type: ignore[override]
        self.heard.append(input_message)
        arrays = [decode(each, "aux", limits=WIRE) for each in input_message.aux]
        return pb.SeedContextResponse(context_len=sum(each.bits.shape[1] for each in arrays))

    async def Restore(self, input_message):  # type: ignore[override]
        rows, form = len(input_message.prompt_ids), FORMS[self.form]
        layers = [
            form.LayerKV(layer=at, k=tensor(self.form, rows, at), v=tensor(self.form, rows, at + 1))
            for at in (3, 5)
        ]
        return form.RestoreResponse(restored=layers, evicted_positions=[4, 5], prompt_len=rows)


def restored(answer: Any) -> list[tuple[int, bytes, bytes]]:
    """The layers of an answer as plain values."""
    return [
        (each.layer, *(decode(t, "t", limits=WIRE).bits.tobytes() for t in (each.k, each.v)))
        for each in answer.restored
    ]


def expected(rows: int) -> list[tuple[int, bytes, bytes]]:
    """What restored() says of a Drafter's answer."""
    return [
        (at, array(rows, at).bits.tobytes(), array(rows, at + 1).bits.tobytes()) for at in (3, 5)
    ]
