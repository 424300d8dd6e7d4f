"""From a request for text to the events of its generation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from kakeya.config.settings import BOUNDS, Settings
from kakeya.console.admission import Admission
from kakeya.console.slot import ModelSlot, Ready
from kakeya.decoding import Block, Peers, Sampling, Tally, decode
from kakeya.errors import demand
from kakeya.verifying.tokenizer import Tokenizer
from kakeya.verifying.verifier import KvPlan
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb


class Generations:
    """Serves generations with the node's verifier, as many at once as admission lets in."""

    def __init__(
        self,
        *,
        settings: Settings,
        slot: ModelSlot,
        peers: Peers,
        admission: Admission,
        wall: Callable[[], float],
        note_speed: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._slot = slot
        self._peers = peers
        self._admission = admission
        self._wall = wall
        self._note_speed = note_speed

    async def stream(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateEvent, None]:
        """Events block by block; the last one carries `done`.  Raises Refused."""
        demand_small(request, self._settings)
        async with self._admission.place():
            ready = await self._slot.get(within_s=self._settings.node.load_s)
            prompt_ids = prompt_of(request, ready.tokenizer, self._wall)
            async with aclosing(self._decode(ready, prompt_ids, request)) as blocks:
                async for block in blocks:
                    yield event_of(block, ready.engine.verifier.model_id)
                    if block.tally is not None:
                        self._note(block.tally)

    def _decode(
        self, ready: Ready, prompt_ids: list[int], request: pb.GenerateRequest
    ) -> AsyncGenerator[Block, None]:
        settings = self._settings
        num_drafts = request.num_drafts or settings.num_drafts
        exact = request.exact or settings.exact
        demand(
            exact in ("guarded", "strict"),
            "INVALID_ARGUMENT",
            f"exact is {exact!r}, it must be guarded or strict",
        )
        return decode(
            ready.engine,
            prompt_ids,
            self._peers,
            max_tokens=request.max_tokens,
            stop_ids=ready.tokenizer.eos_ids,
            stops=tuple(request.stop),
            text=ready.tokenizer.stream(),
            sampling=sampling_of(request),
            plan=kv_plan(request, settings, ready, len(prompt_ids)),
            num_drafts=num_drafts if isinstance(num_drafts, int) else None,
            draft_on=request.draft_on or settings.draft_on,
            plain=request.plain,
            exact="strict" if exact == "strict" else "guarded",
        )

    def _note(self, tally: Tally) -> None:
        if tally.num_ids and tally.decode_s:
            self._note_speed(tally.num_ids / tally.decode_s)


def demand_small(request: pb.GenerateRequest, settings: Settings) -> None:
    """Raise Refused(INVALID_ARGUMENT) for what is out of bounds before any work is done."""
    limits = settings.node
    texts = [request.text, *(message.content for message in request.messages)]
    num_bytes = sum(len(text.encode()) for text in texts) + 4 * len(request.prompt_ids)
    demand(
        num_bytes <= limits.max_prompt_bytes,
        "INVALID_ARGUMENT",
        f"the prompt has {num_bytes} bytes, the limit is {limits.max_prompt_bytes}",
    )
    demand(
        len(request.stop) <= limits.max_stop_strings,
        "INVALID_ARGUMENT",
        f"{len(request.stop)} stop strings are given, the limit is {limits.max_stop_strings}",
    )
    longest = max((len(text.encode()) for text in request.stop), default=0)
    demand(
        longest <= limits.max_stop_bytes,
        "INVALID_ARGUMENT",
        f"a stop string has {longest} bytes, the limit is {limits.max_stop_bytes}",
    )
    given = [bool(request.text), bool(request.messages), bool(request.prompt_ids)]
    demand(
        sum(given) == 1,
        "INVALID_ARGUMENT",
        f"{sum(given)} of text, messages and prompt_ids are given, it must be one",
    )


def prompt_of(
    request: pb.GenerateRequest, tokenizer: Tokenizer, wall: Callable[[], float]
) -> list[int]:
    """The ids to decode behind: as given, raw text, or text in the model's chat template."""
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.raw or (request.text and tokenizer.template is None):
        return tokenizer.encode(request.text, add_special=True)
    messages = [{"role": m.role, "content": m.content} for m in request.messages]
    if request.text:
        messages = [{"role": "user", "content": request.text}]
    return tokenizer.encode(tokenizer.render_chat(messages, wall=wall))


def sampling_of(request: pb.GenerateRequest) -> Sampling:
    """An absent top_p reads as 0 on the wire and means 1."""
    return Sampling(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p or 1.0,
        min_p=request.min_p,
        seed=request.seed,
    )


def kv_plan(
    request: pb.GenerateRequest, settings: Settings, ready: Ready, prompt_len: int
) -> KvPlan:
    mode = request.kv_mode or settings.kv
    longest = ready.engine.verifier.geometry.max_context_len
    max_len = min(longest, prompt_len + request.max_tokens)
    if mode == "window":
        sink = request.kv_sink.value if request.HasField("kv_sink") else settings.sink
        window = request.kv_window.value if request.HasField("kv_window") else settings.window
        for key, value in (("sink", sink), ("window", window)):
            low, high = BOUNDS[key]
            demand(
                low <= value <= high,
                "INVALID_ARGUMENT",
                f"{key} is {value}, it must be at least {low:g} and at most {high:g}",
            )
        return KvPlan("window", sink, window, max_len)
    demand(mode == "full", "INVALID_ARGUMENT", f"kv is {mode!r}, it must be full or window")
    return KvPlan("full", 0, 0, max_len)


def event_of(block: Block, model_id: str) -> pb.GenerateEvent:
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
        event.done.CopyFrom(done_of(block, block.tally, model_id))
    return event


def done_of(block: Block, tally: Tally, model_id: str) -> pb.Done:
    return pb.Done(
        finish_reason=block.finish_reason,
        prompt_len=tally.prompt_len,
        prefill_s=tally.prefill_s,
        decode_s=tally.decode_s,
        fallbacks=dict(tally.fallbacks),
        margin_rechecks=tally.margin_rechecks,
        model_id=model_id,
    )
