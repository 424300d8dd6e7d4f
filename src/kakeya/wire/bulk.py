"""The contract's messages that carry tensors, in and out without a copy of the tensors' bytes.

Fields and names are those of the generated messages, and tensors serve wire/tensor.decode as the
generated ones do.  `buffers()` are a message's bytes in order, the same that protobuf would write,
over the memory of the arrays: those must stay as they are until the message was sent.  What was
read are read-only views of the memory it came in, which lives as long as any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kakeya.config.wire import WireLimits
from kakeya.wire.cut import Cut, Plan, cut, piece_at, varint
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.tensor import AnyTensor, TensorView

Buffer = bytes | bytearray | memoryview
Reader = Callable[[memoryview], Any]

_TENSOR = Plan(cut=frozenset({3}))
_LAYER = Plan(within={2: _TENSOR, 3: _TENSOR})
RESTORED = Plan(within={1: _LAYER})
CONTEXT = Plan(within={2: _TENSOR})
# Buffers below this are joined: a vector of its own costs as much as copying so many bytes.
_MIN_OWN_BYTES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class LayerKV:
    layer: int
    k: AnyTensor
    v: AnyTensor


@dataclass(frozen=True, slots=True, eq=False)
class RestoreResponse:
    restored: Sequence[LayerKV] = ()
    evicted_positions: Sequence[int] = ()
    prompt_len: int = 0

    def buffers(self) -> list[Buffer]:
        parts: list[Buffer] = []
        for each in self.restored:
            layer: list[Buffer] = [pb.LayerKV(layer=each.layer).SerializeToString()]
            layer += _field(2, _tensor(each.k))
            layer += _field(3, _tensor(each.v))
            parts += _field(1, layer)
        rest = pb.RestoreResponse(
            evicted_positions=self.evicted_positions, prompt_len=self.prompt_len
        )
        return _joined([*parts, rest.SerializeToString()])


@dataclass(frozen=True, slots=True, eq=False)
class SeedContextRequest:
    session_id: str = ""
    aux: Sequence[AnyTensor] = ()
    positions: Sequence[int] = ()

    def buffers(self) -> list[Buffer]:
        return _context(self)


@dataclass(frozen=True, slots=True, eq=False)
class ExtendContextRequest:
    session_id: str = ""
    aux: Sequence[AnyTensor] = ()
    positions: Sequence[int] = ()

    def buffers(self) -> list[Buffer]:
        return _context(self)


def readers(limits: WireLimits) -> Mapping[type, Reader]:
    """For each of the contract's messages with tensors: what reads it from its bytes.

    A reader keeps views of the memory it is given.  It raises DecodeError, or Refused for what is
    too much.
    """
    return {
        pb.RestoreResponse: partial(_read_restored, limits),
        pb.SeedContextRequest: partial(_read_context, limits, SeedContextRequest),
        pb.ExtendContextRequest: partial(_read_context, limits, ExtendContextRequest),
    }


def _read_restored(limits: WireLimits, memory: memoryview) -> RestoreResponse:
    found = cut(memory.toreadonly(), RESTORED, limits=limits)
    rest = pb.RestoreResponse.FromString(found.rest)
    layers = tuple(
        LayerKV(each.layer, _view(found, each.k), _view(found, each.v)) for each in rest.restored
    )
    return RestoreResponse(layers, rest.evicted_positions, rest.prompt_len)


def _read_context(
    limits: WireLimits,
    made: type[SeedContextRequest] | type[ExtendContextRequest],
    memory: memoryview,
) -> SeedContextRequest | ExtendContextRequest:
    found = cut(memory.toreadonly(), CONTEXT, limits=limits)
    # The two have the same fields.
    rest = pb.SeedContextRequest.FromString(found.rest)
    return made(rest.session_id, tuple(_view(found, t) for t in rest.aux), rest.positions)


def _view(found: Cut, tensor: pb.Tensor) -> TensorView:
    return TensorView(tensor.dtype, tensor.shape, piece_at(found, tensor.data))


def _context(message: SeedContextRequest | ExtendContextRequest) -> list[Buffer]:
    parts: list[Buffer] = [pb.SeedContextRequest(session_id=message.session_id).SerializeToString()]
    for each in message.aux:
        parts += _field(2, _tensor(each))
    parts.append(pb.SeedContextRequest(positions=message.positions).SerializeToString())
    return _joined(parts)


def _tensor(tensor: AnyTensor) -> list[Buffer]:
    head = pb.Tensor(dtype=tensor.dtype, shape=tensor.shape).SerializeToString()
    data = tensor.data
    return [head, *_field(3, [data])] if len(data) else [head]


def _field(number: int, content: list[Buffer]) -> list[Buffer]:
    """A length-delimited field; `number` < 16."""
    return [bytes((number << 3 | 2,)) + varint(sum(map(len, content))), *content]


def _joined(parts: Iterable[Buffer]) -> list[Buffer]:
    """The same bytes with small neighbours in one buffer."""
    out: list[Buffer] = []
    small = bytearray()
    for part in parts:
        if len(part) < _MIN_OWN_BYTES:
            small += part
            continue
        if small:
            out.append(bytes(small))
            small.clear()
        out.append(part)
    return [*out, bytes(small)] if small or not out else out
