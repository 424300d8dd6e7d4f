"""From a request for text to the blocks of its generation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass

import trio

from kakeya.config.settings import BOUNDS, Settings
from kakeya.console.admission import Admission
from kakeya.console.report import reported
from kakeya.console.request import (
    ContextTooLong,
    GenerationRequest,
    demand_scorable,
    demand_small,
    prompt_bytes,
)
from kakeya.console.scoreboard import Scoreboard
from kakeya.console.slot import ModelSlot, Ready
from kakeya.decoding import Block, Peers, Tally, decode
from kakeya.errors import demand
from kakeya.metrics import Metrics
from kakeya.verifying.tokenizer import Tokenizer
from kakeya.verifying.verifier import KvPlan

# Threads that turn long prompts into ids; a megabyte takes a core two seconds.
NUM_ENCODING = 2


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation that has its place; nothing is computed before the first block is asked for."""

    prompt_ids: tuple[int, ...]
    model_id: str
    backend: str
    tokenizer: Tokenizer
    blocks: AsyncGenerator[Block, None]


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
        metrics: Metrics,
        proposers_loaded: trio.Event | None = None,
    ) -> None:
        """proposers_loaded: set once the node's own are; None: there is none to wait for."""
        self._settings = settings
        self._proposers_loaded = proposers_loaded
        self._slot = slot
        self._peers = peers
        self._admission = admission
        self._wall = wall
        self._note_speed = note_speed
        self._metrics = metrics
        self.scoreboard = Scoreboard()
        self._encoding = trio.CapacityLimiter(NUM_ENCODING)

    @asynccontextmanager
    async def open(self, request: GenerationRequest) -> AsyncIterator[Generation]:
        """A generation once there is a place and a model for it.

        Raises Refused, here or with the first block; leaving ends the work within one block.
        """
        async with (
            reported(self._metrics, self.scoreboard, self._note) as report,
            self._place_for(request),
        ):
            ready = await self._slot.get(within_s=self._settings.node.load_s)
            if request.proposer and self._proposers_loaded is not None:
                with trio.move_on_after(self._settings.node.load_s):
                    await self._proposers_loaded.wait()
            prompt_ids = await self._prompt_ids(request, ready.tokenizer)
            demand_scorable(request, len(prompt_ids), self._settings.node)
            max_tokens = answer_len(request, len(prompt_ids), _max_context_len(ready))
            report.prompt_len = len(prompt_ids)
            report.model_id = ready.engine.verifier.model_id
            async with (
                aclosing(self._decode(ready, prompt_ids, request, max_tokens)) as decoded,
                aclosing(report.of(decoded)) as blocks,
            ):
                yield Generation(
                    tuple(prompt_ids), report.model_id, ready.backend, ready.tokenizer, blocks
                )

    def _place_for(self, request: GenerationRequest) -> AbstractAsyncContextManager[None]:
        demand_small(request, self._settings.node)
        return self._admission.place()

    async def _prompt_ids(self, request: GenerationRequest, tokenizer: Tokenizer) -> list[int]:
        if prompt_bytes(request) <= self._settings.node.max_inline_bytes:
            return prompt_of(request, tokenizer, self._wall)
        return await trio.to_thread.run_sync(
            prompt_of,
            request,
            tokenizer,
            self._wall,
            abandon_on_cancel=True,
            limiter=self._encoding,
        )

    def _decode(
        self, ready: Ready, prompt_ids: list[int], request: GenerationRequest, max_tokens: int
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
            max_tokens=max_tokens,
            stop_ids=ready.tokenizer.eos_ids,
            stops=request.stops,
            text=ready.tokenizer.stream(),
            sampling=request.sampling,
            num_top=request.num_top,
            scores_prompt=request.scores_prompt,
            plan=kv_plan(
                request,
                settings,
                max_len=min(_max_context_len(ready), len(prompt_ids) + max_tokens),
                prompt_len=len(prompt_ids),
            ),
            num_drafts=num_drafts if isinstance(num_drafts, int) else None,
            draft_on=request.draft_on or settings.draft_on,
            proposer=request.proposer,
            plain=request.plain,
            exact="strict" if exact == "strict" else "guarded",
        )

    def _note(self, tally: Tally) -> None:
        if tally.num_ids and tally.decode_s:
            self._note_speed(tally.num_ids / tally.decode_s)


def _max_context_len(ready: Ready) -> int:
    return ready.engine.verifier.geometry.max_context_len


def answer_len(request: GenerationRequest, prompt_len: int, max_context_len: int) -> int:
    """Most tokens of the answer.  Raises ContextTooLong where it has to fit and does not."""
    room, asked = max_context_len - prompt_len, request.max_tokens
    wanted = max(asked or 0, 1)
    if room < (wanted if request.must_fit else 1):
        raise ContextTooLong(
            prompt_len=prompt_len,
            max_tokens=asked if request.must_fit else None,
            max_context_len=max_context_len,
        )
    return room if asked is None else asked


def prompt_of(
    request: GenerationRequest, tokenizer: Tokenizer, wall: Callable[[], float]
) -> list[int]:
    """The ids to decode behind: as given, raw text, or text in the model's chat template."""
    if request.prompt_ids:
        return list(request.prompt_ids)
    if request.raw or (request.text and tokenizer.template is None):
        return tokenizer.encode(request.text, add_special=True)
    messages = [dict(message) for message in request.messages]
    if request.text:
        messages = [{"role": "user", "content": request.text}]
    return tokenizer.encode(tokenizer.render_chat(messages, wall=wall))


def kv_plan(
    request: GenerationRequest, settings: Settings, *, max_len: int, prompt_len: int
) -> KvPlan:
    mode = request.kv_mode or settings.kv
    if mode in ("window", "restored"):
        sink = settings.sink if request.sink is None else request.sink
        window = settings.window if request.window is None else request.window
        for key, value in (("sink", sink), ("window", window)):
            low, high = BOUNDS[key]
            demand(
                low <= value <= high,
                "INVALID_ARGUMENT",
                f"{key} is {value}, it must be at least {low:g} and at most {high:g}",
            )
        if mode == "restored":
            return KvPlan("restored", sink, window, max_len, prompt_len=prompt_len)
        return KvPlan("window", sink, window, max_len)
    demand(
        mode == "full", "INVALID_ARGUMENT", f"kv is {mode!r}, it must be full, window or restored"
    )
    return KvPlan("full", 0, 0, max_len)
