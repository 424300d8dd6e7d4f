"""The console's requests and events as its gRPC messages.  Pure."""

from __future__ import annotations

from kakeya.console.request import GenerationRequest
from kakeya.decoding import Block, Reshaping, Sampling, Tally
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb


def request_of(message: pb.GenerateRequest) -> GenerationRequest:
    """An absent top_p or repetition_penalty reads as 0 on the wire and means 1.

    num_drafts 0 is the node's own.
    """
    return GenerationRequest(
        text=message.text,
        messages=tuple({"role": m.role, "content": m.content} for m in message.messages),
        prompt_ids=tuple(message.prompt_ids),
        raw=message.raw,
        max_tokens=message.max_tokens,
        stops=tuple(message.stop),
        sampling=Sampling(
            temperature=message.temperature,
            top_k=message.top_k,
            top_p=message.top_p or 1.0,
            min_p=message.min_p,
            seed=message.seed,
            reshaping=Reshaping(
                repetition=message.repetition_penalty or 1.0,
                frequency=message.frequency_penalty,
                presence=message.presence_penalty,
                biases=tuple(sorted(message.logit_bias.items())),
            ),
        ),
        plain=message.plain,
        draft_on=message.draft_on,
        proposer=message.proposer,
        num_drafts=message.num_drafts or None,
        kv_mode=message.kv_mode,
        sink=message.kv_sink.value if message.HasField("kv_sink") else None,
        window=message.kv_window.value if message.HasField("kv_window") else None,
        exact=message.exact,
    )


def event_of(block: Block, model_id: str, backend: str = "") -> pb.GenerateEvent:
    event = pb.GenerateEvent(
        text=block.text,
        ids=block.ids,
        block=pb.Block(
            num_drafts=block.num_drafts,
            num_accepted=block.num_accepted,
            proposer=block.proposer,
            drafted_on=block.drafted_on,
        ),
    )
    if block.tally is not None:
        event.done.CopyFrom(_done_of(block, block.tally, model_id, backend))
    return event


def _done_of(block: Block, tally: Tally, model_id: str, backend: str) -> pb.Done:
    return pb.Done(
        finish_reason=block.finish_reason,
        prompt_len=tally.prompt_len,
        prefill_s=tally.prefill_s,
        decode_s=tally.decode_s,
        fallbacks=dict(tally.fallbacks),
        margin_rechecks=tally.margin_rechecks,
        model_id=model_id,
        backend=backend,
        cached_tokens=tally.cached_len,
    )
