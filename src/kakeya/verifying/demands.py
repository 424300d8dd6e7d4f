"""What a verifier refuses before it writes anything, whatever framework computes it.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.window import reading_of


class Filled(Protocol):
    """How far a K/V is written.  forgettable_from: positions below stay."""

    plan: KvPlan
    length: int
    forgettable_from: int


class KvFull(Refused):
    """There is no room for a K/V beside those that are held."""

    def __init__(self, why: str) -> None:
        super().__init__("RESOURCE_EXHAUSTED", why)


class Rewindable(Protocol):
    """A K/V some of whose first positions are as their own passes wrote them."""

    @property
    def plan(self) -> KvPlan: ...

    @property
    def rewindable_len(self) -> int: ...


def demand_plan(plan: KvPlan, config: ModelConfig) -> None:
    """Raise Refused unless a model of this shape can keep such a K/V."""
    demand(
        1 <= plan.max_len <= config.max_context_len,
        "OUT_OF_RANGE",
        f"max_len is {plan.max_len}, the model's context is 1 to {config.max_context_len}",
    )
    demand(
        plan.mode == "full" or (plan.window >= 1 and plan.sink >= 0),
        "INVALID_ARGUMENT",
        f"sink is {plan.sink} and window {plan.window}, they must be at least 0 and 1",
    )
    demand(
        plan.mode != "restored" or 1 <= plan.prompt_len <= plan.max_len,
        "INVALID_ARGUMENT",
        f"prompt_len is {plan.prompt_len}, it must be from 1 to {plan.max_len}",
    )


def demand_room(wanted_bytes: int, *, held_bytes: int, limits: VerifyingLimits) -> None:
    """Raise KvFull where a K/V and the open ones would pass the limit."""
    if held_bytes + wanted_bytes > limits.max_kv_bytes:
        raise KvFull(
            f"the K/V takes {wanted_bytes} bytes, {held_bytes} are held, "
            f"the limit is {limits.max_kv_bytes}"
        )


def demand_block(ids: Sequence[int], limits: VerifyingLimits) -> None:
    """Raise Refused(INVALID_ARGUMENT) for more rows than one verify pass takes."""
    demand(
        len(ids) <= limits.max_block_len,
        "INVALID_ARGUMENT",
        f"the block has {len(ids)} rows, the limit is {limits.max_block_len}",
    )


def demand_chunk(ids: Sequence[int], limits: VerifyingLimits) -> None:
    """Raise Refused(INVALID_ARGUMENT) for more tokens than one prefill job takes."""
    demand(
        len(ids) <= limits.max_prefill_chunk_len,
        "INVALID_ARGUMENT",
        f"the chunk has {len(ids)} tokens, the limit is {limits.max_prefill_chunk_len}",
    )


def demand_aux_layers(aux_layers: Sequence[int], config: ModelConfig) -> None:
    """Raise Refused(INVALID_ARGUMENT) for a layer that the model does not have."""
    for layer in aux_layers:
        demand(
            0 <= layer < config.num_layers,
            "INVALID_ARGUMENT",
            f"aux layer is {layer}, the model has layers 0 to {config.num_layers - 1}",
        )


def demand_writable(kv: Filled, ids: Sequence[int], config: ModelConfig) -> None:
    """Raise Refused unless `ids` are of the vocabulary and fit behind what is written."""
    demand(len(ids) > 0, "INVALID_ARGUMENT", "there are no ids, at least 1 is needed")
    vocab_size = config.vocab_size
    demand(
        min(ids) >= 0 and max(ids) < vocab_size,
        "INVALID_ARGUMENT",
        f"ids reach from {min(ids)} to {max(ids)}, the vocabulary is 0 to {vocab_size - 1}",
    )
    demand(
        kv.length + len(ids) <= kv.plan.max_len,
        "OUT_OF_RANGE",
        f"{kv.length} positions and {len(ids)} more pass the plan's {kv.plan.max_len}",
    )


def demand_forgettable(kv: Filled, length: int) -> None:
    """Raise Refused(OUT_OF_RANGE) for a length that trimming cannot reach."""
    demand(
        kv.forgettable_from <= length <= kv.length,
        "OUT_OF_RANGE",
        f"length is {length}, it must be from {kv.forgettable_from} to {kv.length}",
    )


def demand_rewindable(kv: Rewindable, plan: KvPlan, length: int, *, first_round_len: int) -> None:
    """Raise Refused unless the first `length` positions of `kv` can be those of `plan`.

    first_round_len: positions that `plan` has a slot for before it evicts any.
    """
    longest = min(kv.rewindable_len, first_round_len, plan.max_len)
    demand(
        0 <= length <= longest,
        "OUT_OF_RANGE",
        f"length is {length}, it must be from 0 to {longest}",
    )
    demand(
        reading_of(kv.plan) == reading_of(plan),
        "INVALID_ARGUMENT",
        f"the K/V was read with sink and window {reading_of(kv.plan)}, "
        f"the plan has {reading_of(plan)}",
    )
