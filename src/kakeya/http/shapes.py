"""The JSON of answers, whole and in pieces, for chat and for plain completions.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kakeya.decoding import Tally
from kakeya.http.scores import ChatScores, Scores, Spelling, TextScores
from kakeya.http.usage import timings_of, usage_of


@dataclass(frozen=True, slots=True)
class Label:
    """What every piece of one answer carries."""

    answer_id: str
    created_unix: int
    model_id: str


@dataclass(frozen=True, slots=True)
class Said:
    """What one generation said, whole.  scores: log probabilities in the answer's own form."""

    text: str
    finish_reason: str
    tally: Tally
    scores: Any = None


class Shape(Protocol):
    """How one endpoint says it."""

    @property
    def prefix(self) -> str:
        """What the id of an answer begins with."""
        ...

    def scores(self, spelling: Spelling, *, echoed: str, text_len: int) -> Scores:
        """Spells a choice's scores: its text begins with `echoed`, the first id at `text_len`."""
        ...

    def whole(self, label: Label, said: Sequence[Said]) -> dict[str, Any]: ...

    def opening(self, label: Label, index: int) -> dict[str, Any] | None:
        """The first piece of a choice, before any text; None where there is none."""
        ...

    def piece(
        self, label: Label, index: int, *, text: str, scores: Any, finish_reason: str
    ) -> dict[str, Any]: ...

    def last(self, label: Label, tallies: Sequence[Tally]) -> dict[str, Any]:
        """The piece with the usage and no choice."""
        ...


@dataclass(frozen=True, slots=True)
class ChatShape:
    prefix: str = "chatcmpl-"

    def scores(self, spelling: Spelling, *, echoed: str, text_len: int) -> Scores:
        return ChatScores(spelling.bytes_of)

    def whole(self, label: Label, said: Sequence[Said]) -> dict[str, Any]:
        choices = [
            _choice(
                i,
                {"message": {"role": "assistant", "content": each.text, "refusal": None}},
                each.scores,
                each.finish_reason,
            )
            for i, each in enumerate(said)
        ]
        return _whole("chat.completion", label, choices, [each.tally for each in said])

    def opening(self, label: Label, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return _piece("chat.completion.chunk", label, [_choice(index, {"delta": delta}, None, "")])

    def piece(
        self, label: Label, index: int, *, text: str, scores: Any, finish_reason: str
    ) -> dict[str, Any]:
        delta = {"content": text} if text or scores else {}
        choice = _choice(index, {"delta": delta}, scores, finish_reason)
        return _piece("chat.completion.chunk", label, [choice])

    def last(self, label: Label, tallies: Sequence[Tally]) -> dict[str, Any]:
        return _whole("chat.completion.chunk", label, [], tallies)


@dataclass(frozen=True, slots=True)
class TextShape:
    prefix: str = "cmpl-"

    def scores(self, spelling: Spelling, *, echoed: str, text_len: int) -> Scores:
        return TextScores(spelling, echoed, text_len)

    def whole(self, label: Label, said: Sequence[Said]) -> dict[str, Any]:
        choices = [
            _choice(i, {"text": each.text}, each.scores, each.finish_reason)
            for i, each in enumerate(said)
        ]
        return _whole("text_completion", label, choices, [each.tally for each in said])

    def opening(self, label: Label, index: int) -> dict[str, Any] | None:
        return None

    def piece(
        self, label: Label, index: int, *, text: str, scores: Any, finish_reason: str
    ) -> dict[str, Any]:
        choice = _choice(index, {"text": text}, scores, finish_reason)
        return _piece("text_completion", label, [choice])

    def last(self, label: Label, tallies: Sequence[Tally]) -> dict[str, Any]:
        return _whole("text_completion", label, [], tallies)


def _choice(index: int, what: Mapping[str, Any], scores: Any, reason: str) -> dict[str, Any]:
    return {"index": index, **what, "logprobs": scores, "finish_reason": reason or None}


def _piece(kind: str, label: Label, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": label.answer_id,
        "object": kind,
        "created": label.created_unix,
        "model": label.model_id,
        "choices": choices,
    }


def _whole(
    kind: str, label: Label, choices: list[dict[str, Any]], tallies: Sequence[Tally]
) -> dict[str, Any]:
    account = {"usage": usage_of(tallies), "timings": timings_of(tallies)}
    return _piece(kind, label, choices) | account


__all__ = ["ChatShape", "Label", "Said", "Shape", "TextShape"]
