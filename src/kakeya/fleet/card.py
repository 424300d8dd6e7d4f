"""One node's capability card: how it is read, checked, compared and written.

A card keeps its frame verbatim (see frames.py), so that fields and roles we do not know survive
us.  Pure; knows no clock.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Literal, get_args

from google.protobuf.message import DecodeError

from kakeya.config.fleet import FleetLimits
from kakeya.fleet.address import Reach, reach_of
from kakeya.fleet.frames import body_of, framed
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb

ROLE_VERIFIER = 1
ROLE_PROPOSER = 2

Reason = Literal[
    "malformed",
    "node_id",
    "stamp",
    "ttl",
    "future",
    "models",
    "text",
    "size",
    "expired",
    "ghost",
    "full",
]
REASONS: tuple[Reason, ...] = get_args(Reason)

STAMP_TAG = b"\x39"  # field 7, 64 bits
STAMP = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Model:
    """One (model, role) a node offers; `tokens_per_second` 0 = unmeasured."""

    model_id: str
    role: int
    quantization: str
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Offer:
    """All that a card says but its stamp, read and checked."""

    node_id: str
    grpc_address: str
    platform: str
    memory_bytes: int
    mlx_version: str
    models: tuple[Model, ...]
    ttl_s: float
    ring_address: str
    # From where grpc_address may be dialled; told once, asked at every tick.
    reach: Reach
    # The frame before and after the eight bytes of the stamp; both b"" when those do not stand out.
    head: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Card:
    """A valid card: the offer, the owner's stamp, and the frame they were read from."""

    offer: Offer
    announced_at_unix: float
    frame: bytes

    @property
    def node_id(self) -> str:
        return self.offer.node_id

    @property
    def expires_at_unix(self) -> float:
        return self.announced_at_unix + self.offer.ttl_s

    def is_expired(self, now_unix: float) -> bool:
        """Spec: F-04."""
        return now_unix > self.announced_at_unix + self.offer.ttl_s


@dataclass(frozen=True, slots=True)
class Bad:
    """A card that was not taken, and why in one line."""

    reason: Reason
    node_id: str
    why: str


def decode(frame: bytes, *, now_unix: float, limits: FleetLimits) -> Card | Bad:
    """The card in `frame`, or what is wrong with it.  Expiry is not judged.  Spec: F-01."""
    raw = body_of(frame)
    if len(raw) > limits.max_card_bytes:
        return Bad("size", "", f"a card of {len(raw)} bytes, the limit is {limits.max_card_bytes}")
    try:
        message = pb.NodeCapability.FromString(raw)
    except DecodeError:
        return Bad("malformed", "", f"{len(raw)} bytes that are no card")
    stamp = message.announced_at_unix
    head, tail = _around_stamp(frame, stamp)
    return _fault(message, now_unix, limits) or Card(
        Offer(
            node_id=message.node_id,
            grpc_address=message.grpc_address,
            platform=message.platform,
            memory_bytes=message.unified_memory_bytes,
            mlx_version=message.mlx_version,
            models=tuple(
                Model(m.model_id, m.role, m.quantization, _measured(m.tokens_per_second))
                for m in message.models
            ),
            ttl_s=message.ttl_seconds,
            ring_address=message.ring_address,
            reach=reach_of(message.grpc_address),
            head=head,
            tail=tail,
        ),
        stamp,
        frame,
    )


def _fault(message: pb.NodeCapability, now_unix: float, limits: FleetLimits) -> Bad | None:
    stamp, ttl_s, num_models = message.announced_at_unix, message.ttl_seconds, len(message.models)
    node_id = message.node_id
    id_bytes = len(node_id.encode())
    shown = node_id[:32]
    if not 0 < id_bytes <= limits.max_node_id_bytes:
        bound = f"1 to {limits.max_node_id_bytes}"
        return Bad("node_id", shown, f"a node_id of {id_bytes} bytes, allowed are {bound}")
    if not math.isfinite(stamp):
        return Bad("stamp", shown, f"announced_at_unix is {stamp}")
    if not 0 < ttl_s <= limits.max_ttl_s:  # false for NaN too
        bound = f"above 0 and at most {limits.max_ttl_s:g}"
        return Bad("ttl", shown, f"ttl_seconds is {ttl_s:g}, allowed is {bound}")
    if stamp > now_unix + limits.max_ahead_s:
        ahead_s = stamp - now_unix
        bound = f"{limits.max_ahead_s:g} s"
        return Bad("future", shown, f"stamped {ahead_s:.0f} s ahead of our clock, allowed {bound}")
    if num_models > limits.max_models:
        return Bad("models", shown, f"{num_models} models, the limit is {limits.max_models}")
    longest = max(_text_lengths(message))
    if longest > limits.max_text_bytes:
        bound = f"the limit is {limits.max_text_bytes}"
        return Bad("text", shown, f"a text of {longest} bytes, {bound}")
    return None


def _text_lengths(message: pb.NodeCapability) -> list[int]:
    texts = [message.grpc_address, message.platform, message.mlx_version, message.ring_address]
    for model in message.models:
        texts += (model.model_id, model.quantization)
    return [len(text) if text.isascii() else len(text.encode()) for text in texts]


def _measured(tokens_per_second: float) -> float:
    is_measure = math.isfinite(tokens_per_second) and tokens_per_second >= 0
    return tokens_per_second if is_measure else 0.0


def _around_stamp(frame: bytes, stamp: float) -> tuple[bytes, bytes]:
    # The last field 7 wins, so the winning one is in here; if the nine bytes occur once, they
    # are it, and a card that differs in those eight only is the same offer re-announced.
    needle = STAMP_TAG + STAMP.pack(stamp)
    at = frame.find(needle)
    if at < 0 or frame.find(needle, at + 1) >= 0:
        return b"", b""
    return frame[: at + 1], frame[at + 9 :]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a probe's card says of its sender, unchecked: it may be expired or from the future."""

    node_id: str
    grpc_address: str
    announced_at_unix: float


def claimed(frame: bytes) -> Claim | None:
    """Who answered a probe, or None when that is no card."""
    try:
        message = pb.NodeCapability.FromString(body_of(frame))
    except DecodeError:
        return None
    return Claim(message.node_id, message.grpc_address, message.announced_at_unix)


def restamped(held: Card, frame: bytes) -> Card | None:
    """`held` with the stamp of `frame` when they differ in nothing else, without decoding.

    The stamp is not judged.  Spec: F-13.
    """
    offer = held.offer
    head = offer.head
    is_same = (
        len(frame) == len(held.frame) and frame.startswith(head) and frame.endswith(offer.tail)
    )
    if not is_same or not head:
        return None
    return Card(offer, STAMP.unpack_from(frame, len(head))[0], frame)


def beats(card: Card, held: Card) -> bool:
    """Whether `card` takes the place of `held`: the larger stamp, then the larger bytes.

    A total order, so every order of delivery ends with the same winner.  Spec: F-02.
    """
    if card.announced_at_unix != held.announced_at_unix:
        return card.announced_at_unix > held.announced_at_unix
    if card.frame == held.frame:
        return False
    return _tie_key(card) > _tie_key(held)


def _tie_key(card: Card) -> tuple[bytes, bytes]:
    raw = body_of(card.frame)
    return canonical(raw), raw


def canonical(raw: bytes) -> bytes:
    """The card's bytes however its sender ordered the fields; unknown fields included."""
    return pb.NodeCapability.FromString(raw).SerializeToString(deterministic=True)


def encode(offer: Offer, announced_at_unix: float) -> bytes:
    """The frame of a card of our own."""
    message = pb.NodeCapability(
        node_id=offer.node_id,
        grpc_address=offer.grpc_address,
        platform=offer.platform,
        unified_memory_bytes=offer.memory_bytes,
        mlx_version=offer.mlx_version,
        models=[_model_message(model) for model in offer.models],
        announced_at_unix=announced_at_unix,
        ttl_seconds=offer.ttl_s,
        ring_address=offer.ring_address,
    )
    return framed(message.SerializeToString(deterministic=True))


def _model_message(model: Model) -> pb.ModelCapability:
    message = pb.ModelCapability(
        model_id=model.model_id,
        quantization=model.quantization,
        tokens_per_second=model.tokens_per_second,
    )
    message.role = model.role  # type: ignore[assignment]  # proto3 enums are open
    return message
