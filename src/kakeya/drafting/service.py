"""ProposerService: committed prefix in, exactly block_size drafted ids out.

Turns messages into calls of a Proposer on its device, and refuses what the contract refuses.
Knows no drafter and no transport.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from kakeya.compute.device import Device
from kakeya.config.drafting import DraftingLimits
from kakeya.drafting.proposer import Draft, JobByJob, Jobs, Proposer
from kakeya.drafting.proposer_card import ProposerCard
from kakeya.errors import Refused, demand
from kakeya.wire.pb.kakeya.v1 import distributed_pb2 as pb
from kakeya.wire.pb.kakeya.v1.distributed_grpc import ProposerServiceServicer

MAX_ID = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class _Served:
    """card: what a model's requests must fit; None: any ids are drafted for (n-gram).

    places: the calls that a model drafts for at once; None: as many as come.
    """

    proposer: Proposer | JobByJob
    device: Device
    card: ProposerCard | None = None
    places: trio.Semaphore | None = None


class ProposerService(ProposerServiceServicer):
    """Serves `proposers` (the first is the default) on one device; models join later."""

    def __init__(
        self,
        proposers: Sequence[Proposer | JobByJob],
        *,
        device: Device,
        limits: DraftingLimits,
    ) -> None:
        assert proposers
        super().__init__()
        self._served = {each.model_id: _Served(each, device) for each in proposers}
        self._default = self._served[proposers[0].model_id]
        self._limits = limits
        self._is_draining = False

    @property
    def cards(self) -> list[ProposerCard]:
        """What peers are told of the models served here."""
        return [served.card for served in self._served.values() if served.card is not None]

    def add(self, proposer: JobByJob, card: ProposerCard, *, device: Device) -> None:
        """Serve a model, which drafts for at most `max_caches` calls at once."""
        places = trio.Semaphore(self._limits.max_caches)
        self._served[card.model_id] = _Served(proposer, device, card, places)

    def stop_admitting(self) -> None:
        """The node drains: no new call is taken."""
        self._is_draining = True

    async def ProposeBlock(  # noqa: N802 - the contract's name
        self, input_message: pb.ProposeBlockRequest
    ) -> pb.ProposeBlockResponse:
        """Refused: NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED where too many wait, UNAVAILABLE
        while the node drains, INTERNAL for a proposer that breaks its word.

        A caller that leaves, or whose deadline passes, ends the work before its next job.
        """
        demand(not self._is_draining, "UNAVAILABLE", "this node drains, it takes no new drafts")
        served = self._chosen(input_message.model_id)
        demand_sound(input_message, self._limits)
        if served.card is not None:
            demand_fitting(input_message, served.card)
        draft = await self._in_turn(served, input_message)
        return _response(served.proposer.model_id, draft, input_message.block_size)

    def _chosen(self, model_id: str) -> _Served:
        if not model_id:
            return self._default
        if model_id not in self._served:
            served = ", ".join(sorted(self._served))
            raise Refused("NOT_FOUND", f"no proposer {model_id[:128]!r} here; served: {served}")
        return self._served[model_id]

    async def _in_turn(self, served: _Served, request: pb.ProposeBlockRequest) -> Draft:
        """Draft; where the model has no place left, once one is free."""
        if served.places is None:
            return await _draft(served, request)
        num_waiting, most = served.places.statistics().tasks_waiting, self._limits.max_waiting_calls
        demand(
            num_waiting < most,
            "RESOURCE_EXHAUSTED",
            f"{num_waiting} calls wait for {served.proposer.model_id}, the limit is {most}",
        )
        async with served.places:
            return await _draft(served, request)


async def _draft(served: _Served, request: pb.ProposeBlockRequest) -> Draft:
    proposer, committed = served.proposer, array("I", request.committed_token_ids)
    num_drafts, num_steps = request.block_size, request.num_steps
    if not isinstance(proposer, JobByJob):
        whole = proposer

        def propose() -> Draft:
            return whole.propose(committed, num_drafts=num_drafts, num_steps=num_steps)

        return await served.device.run(propose)
    jobs = proposer.jobs(committed, num_drafts=num_drafts, num_steps=num_steps)
    try:
        while (draft := await served.device.run(_next_job, jobs)) is None:
            pass
        return draft
    finally:
        jobs.close()


def _next_job(jobs: Jobs) -> Draft | None:
    """Run one job; the draft when it was the last."""
    try:
        next(jobs)
    except StopIteration as end:
        draft: Draft = end.value
        return draft
    return None


def demand_fitting(request: pb.ProposeBlockRequest, card: ProposerCard) -> None:
    """Raise Refused(INVALID_ARGUMENT) for ids or lengths that the model does not have."""
    highest = max(request.committed_token_ids)
    demand(
        highest < card.vocab_size,
        "INVALID_ARGUMENT",
        f"token id is {highest}, the vocabulary of {card.model_id} is 0 to {card.vocab_size - 1}",
    )
    length = len(request.committed_token_ids) + request.block_size
    demand(
        length <= card.max_context_len,
        "INVALID_ARGUMENT",
        f"prefix and block are {length} tokens, {card.model_id} has {card.max_context_len}",
    )


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


__all__ = ["ProposerService", "demand_fitting", "demand_sound"]
