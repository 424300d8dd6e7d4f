"""Runs what was asked for and says it: whole, or piece by piece as server-sent events.

A stream's head is sent with its first block, so that what is wrong with a request is a status.
Only when that takes long is it sent before, with a comment; what goes wrong then is an event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
import trio

from kakeya.config.http import HttpLimits
from kakeya.console.generations import Generation, Generations
from kakeya.console.request import GenerationRequest
from kakeya.decoding import Block, Tally
from kakeya.errors import Refused
from kakeya.http.asked import Asked
from kakeya.http.errors import KINDS, error_body, refusal_body
from kakeya.http.messages import Answer, Outlet, json_answer
from kakeya.http.scores import Scores, Spelling
from kakeya.http.shapes import Label, Said
from kakeya.http.usage import timings_of

log = structlog.get_logger(__name__)

SSE_FIELDS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    # A proxy that collects the answer would make no stream of it.
    ("x-accel-buffering", "no"),
)
COMMENT = b": still at work\n\n"
DONE = b"data: [DONE]\n\n"


async def answer(
    asked: Asked, label: Label, *, generations: Generations, outlet: Outlet, limits: HttpLimits
) -> Answer | None:
    """The whole answer, or None when it was streamed to `outlet`.  Raises Refused, OSError."""
    if not asked.is_stream:
        said = [await _said(generations, request, asked) for request in asked.requests]
        return json_answer(200, asked.shape.whole(label, said))
    stream = _Stream(asked, label, outlet)
    try:
        async with _kept_alive(outlet, limits.keepalive_s):
            for index, request in enumerate(asked.requests):
                await stream.choice(index, generations, request)
    except Refused as refused:
        if not outlet.is_begun:
            raise
        await stream.fail(refusal_body(refused))
    except OSError:
        raise
    except Exception:
        if not outlet.is_begun:
            raise
        log.exception("a stream failed on our own mistake")
        await stream.fail(error_body(KINDS["INTERNAL"], "the node failed; its log says more"))
    else:
        await stream.end()
    return None


async def _said(generations: Generations, request: GenerationRequest, asked: Asked) -> Said:
    parts: list[str] = []
    pieces: list[Any] = []
    tally, reason = None, ""
    async with generations.open(request) as generation:
        choice = _Choice(asked, request, generation)
        parts.append(choice.echoed)
        async for block in generation.blocks:
            if not pieces:
                pieces.append(choice.scores_of_prompt(block))
            parts.append(block.text)
            pieces.append(choice.scores_of(block))
            tally, reason = block.tally, block.finish_reason
    assert tally is not None
    scores = choice.joined([each for each in pieces if each is not None])
    return Said("".join(parts), reason, tally, scores)


class _Choice:
    """What is said of one generation beside its text."""

    def __init__(self, asked: Asked, request: GenerationRequest, generation: Generation) -> None:
        self.echoed = prompt_text(request, generation) if asked.echo else ""
        self._eos_ids = frozenset(generation.tokenizer.eos_ids)
        self._prompt_ids = generation.prompt_ids if request.scores_prompt else ()
        self._scores: Scores | None = None
        if request.num_top is not None:
            tokenizer = generation.tokenizer
            spelling = Spelling(tokenizer.token_bytes(), tokenizer.special_ids)
            text_len = 0 if request.scores_prompt else len(self.echoed)
            self._scores = asked.shape.scores(spelling, echoed=self.echoed, text_len=text_len)

    def scores_of_prompt(self, first: Block) -> Any:
        """The scores of the prompt's ids, of which the first block tells."""
        if self._scores is None:
            return None
        scores = (None, *first.prompt_scores) if self._prompt_ids else ()
        return self._scores.piece(self._prompt_ids, scores)

    def scores_of(self, block: Block) -> Any:
        """The scores of a block's ids; the id that ends a text is no part of it."""
        if self._scores is None:
            return None
        is_ended = (
            block.finish_reason == "stop" and block.ids[-1:] and block.ids[-1] in self._eos_ids
        )
        num_ids = len(block.ids) - bool(is_ended)
        return self._scores.piece(block.ids[:num_ids], block.scores[:num_ids])

    def joined(self, pieces: list[Any]) -> Any:
        return None if self._scores is None else self._scores.joined(pieces)


def prompt_text(request: GenerationRequest, generation: Generation) -> str:
    return request.text or generation.tokenizer.decode(generation.prompt_ids)


@dataclass(slots=True)
class _Stream:
    asked: Asked
    label: Label
    outlet: Outlet
    tallies: list[Tally] = field(default_factory=list)

    async def choice(
        self, index: int, generations: Generations, request: GenerationRequest
    ) -> None:
        async with generations.open(request) as generation:
            choice = _Choice(self.asked, request, generation)
            is_first = True
            async for block in generation.blocks:
                if is_first:
                    await self._open(index, choice, choice.scores_of_prompt(block))
                    is_first = False
                await self._block(index, block, choice.scores_of(block))

    async def end(self) -> None:
        if self.asked.wants_usage:
            await self._send(self.asked.shape.last(self.label, self.tallies))
        await self.outlet.piece(DONE)
        await self.outlet.end()

    async def fail(self, body: dict[str, Any]) -> None:
        await self.outlet.piece(event_bytes(body))
        await self.outlet.end()

    async def _open(self, index: int, choice: _Choice, scores: Any) -> None:
        await self.outlet.begin(200, SSE_FIELDS)
        opening = self.asked.shape.opening(self.label, index)
        if opening is not None:
            await self._piece(opening)
        if choice.echoed or scores:
            await self._piece(
                self.asked.shape.piece(
                    self.label, index, text=choice.echoed, scores=scores, finish_reason=""
                )
            )

    async def _block(self, index: int, block: Block, scores: Any) -> None:
        if not block.text and not scores and block.tally is None:
            return
        body = self.asked.shape.piece(
            self.label, index, text=block.text, scores=scores, finish_reason=block.finish_reason
        )
        if block.tally is not None:
            self.tallies.append(block.tally)
            body["timings"] = timings_of([block.tally])
        await self._piece(body)

    async def _piece(self, body: dict[str, Any]) -> None:
        await self._send(body | {"usage": None} if self.asked.wants_usage else body)

    async def _send(self, body: dict[str, Any]) -> None:
        await self.outlet.piece(event_bytes(body))


def event_bytes(body: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


@asynccontextmanager
async def _kept_alive(outlet: Outlet, every_s: float) -> AsyncIterator[None]:
    """Send a comment whenever nothing was sent for `every_s`.  Raises what the block raises."""
    is_over = trio.Event()
    errors: list[Exception] = []

    async def comment(scope: trio.CancelScope) -> None:
        try:
            await _comment(outlet, every_s, is_over)
        except OSError as gone:
            errors.append(gone)
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(comment, nursery.cancel_scope)
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - raised again below, out of the nursery's group
            errors.append(raised)
        # Not cancelled: half a comment would spoil the stream.
        is_over.set()
    if errors:
        raise errors[0]


async def _comment(outlet: Outlet, every_s: float, is_over: trio.Event) -> None:
    while True:
        with trio.move_on_at(outlet.sent_at_s + every_s):
            await is_over.wait()
            return
        if trio.current_time() - outlet.sent_at_s >= every_s:
            await outlet.begin(200, SSE_FIELDS)
            await outlet.piece(COMMENT)


__all__ = ["COMMENT", "DONE", "SSE_FIELDS", "answer", "event_bytes", "prompt_text"]
