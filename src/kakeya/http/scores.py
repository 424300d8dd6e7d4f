"""Log probabilities as the two endpoints spell them.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kakeya.decoding import Score

# The bytes an id stands for.
BytesOf = Callable[[int], bytes]


class Scores(Protocol):
    """Spells the scores of one choice, piece by piece."""

    def piece(self, ids: Sequence[int], scores: Sequence[Score]) -> Any:
        """Of the next ids; None for none."""
        ...

    def joined(self, pieces: Sequence[Any]) -> Any: ...


@dataclass(slots=True)
class ChatScores:
    bytes_of: BytesOf

    def piece(self, ids: Sequence[int], scores: Sequence[Score]) -> Any:
        content = [
            self._entry(token_id, score.logprob)
            | {"top_logprobs": [self._entry(other, logprob) for other, logprob in score.top]}
            for token_id, score in zip(ids, scores, strict=True)
        ]
        return {"content": content, "refusal": None} if content else None

    def joined(self, pieces: Sequence[Any]) -> Any:
        content = [entry for piece in pieces for entry in piece["content"]]
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self.bytes_of(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": logprob, "bytes": list(raw)}


@dataclass(slots=True)
class TextScores:
    """text_len: where the next id's text begins, in characters."""

    bytes_of: BytesOf
    text_len: int = 0

    def piece(self, ids: Sequence[int], scores: Sequence[Score]) -> Any:
        tokens = [self._token(each) for each in ids]
        offsets = []
        for token in tokens:
            offsets.append(self.text_len)
            self.text_len += len(token)
        spelled = {
            "tokens": tokens,
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [
                {self._token(each): logprob for each, logprob in score.top} for score in scores
            ],
            "text_offset": offsets,
        }
        return spelled if tokens else None

    def joined(self, pieces: Sequence[Any]) -> Any:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [each for piece in pieces for each in piece[name]] for name in names}

    def _token(self, token_id: int) -> str:
        return self.bytes_of(token_id).decode(errors="replace")


__all__ = ["BytesOf", "ChatScores", "Scores", "TextScores"]
