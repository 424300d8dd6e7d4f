"""ProposerService: committed prefix in, exactly block_size drafted ids out.

Turns messages into calls of a Proposer on its device, and refuses what the contract refuses.
Knows no drafter and no transport.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kakeya.compute.device import Device
from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.proposer import Draft, Proposer
from kakeya.errors import Refused, demand
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import ProposerServiceServicer

MAX_ID = (1 << 32) - 1


@runtime_checkable
class Preparing(Protocol):
    """A proposer whose work on a new prefix is too long for one job."""

    def prepare(self, committed_ids: Sequence[int]) -> bool:
        """Do one short piece ahead of `propose`; True when nothing is left."""
        ...


class ProposerService(ProposerServiceServicer):
    """Serves `proposers` (the first is the default) on one device."""

    def __init__(
        self, proposers: Sequence[Proposer], *, device: Device, limits: DraftingLimits
    ) -> None:
        assert proposers
        super().__init__()
        self._served = {proposer.model_id: proposer for proposer in proposers}
        self._default = proposers[0]
        self._device = device
        self._limits = limits

    async def ProposeBlock(  # noqa: N802 - the contract's name
        self, input_message: pb.ProposeBlockRequest
    ) -> pb.ProposeBlockResponse:
        """Refused: NOT_FOUND, INVALID_ARGUMENT, INTERNAL for a proposer that breaks its word.

        A caller that leaves, or whose deadline passes, ends the work before its next job.
        """
        proposer = self._chosen(input_message.model_id)
        demand_sound(input_message, self._limits)
        committed = array("I", input_message.committed_token_ids)
        draft = await self._draft(
            proposer, committed, input_message.block_size, input_message.num_steps
        )
        return _response(proposer.model_id, draft, input_message.block_size)

    def _chosen(self, model_id: str) -> Proposer:
        if not model_id:
            return self._default
        if model_id not in self._served:
            served = ", ".join(sorted(self._served))
            raise Refused("NOT_FOUND", f"no proposer {model_id[:128]!r} here; served: {served}")
        return self._served[model_id]

    async def _draft(
        self, proposer: Proposer, committed: array[int], num_drafts: int, num_steps: int
    ) -> Draft:
        def propose() -> Draft:
            return proposer.propose(committed, num_drafts=num_drafts, num_steps=num_steps)

        if isinstance(proposer, Preparing):
            # Bounded: when others push our half-built index out, `propose` does it in one go.
            for _ in range(len(committed) // self._limits.index_piece_len + 1):
                if await self._device.run(proposer.prepare, committed):
                    break
        return await self._device.run(propose)


def demand_sound(request: pb.ProposeBlockRequest, limits: DraftingLimits) -> None:
    """Raise Refused(INVALID_ARGUMENT) naming the first value that is out of its bounds."""
    for name, value, most in (
        (
            "the length of committed_token_ids",
            len(request.committed_token_ids),
            limits.max_prefix_len,
        ),
        ("block_size", request.block_size, limits.max_num_drafts),
        ("num_steps", request.num_steps, limits.max_num_steps),
    ):
        demand(
            1 <= value <= most,
            "INVALID_ARGUMENT",
            f"{name} is {value}, it must be at least 1 and at most {most}",
        )


def _response(model_id: str, draft: Draft, num_drafts: int) -> pb.ProposeBlockResponse:
    demand(
        len(draft.ids) == num_drafts,
        "INTERNAL",
        f"{model_id} drafted {len(draft.ids)} ids, asked for were {num_drafts}",
    )
    demand(
        all(0 <= each <= MAX_ID for each in draft.ids),
        "INTERNAL",
        f"{model_id} drafted an id outside 0 … {MAX_ID}",
    )
    return pb.ProposeBlockResponse(
        token_ids=draft.ids,
        diffusion_steps=draft.diffusion_steps,
        forward_passes=draft.forward_passes,
        peak_activation_bytes=draft.peak_activation_bytes,
    )


__all__ = ["Preparing", "ProposerService", "demand_sound"]
