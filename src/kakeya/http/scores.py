"""Log probabilities as the two endpoints spell them.  Pure."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kakeya.decoding import Score

# The bytes an id stands for.
BytesOf = Callable[[int], bytes]
# None: of the first id of a prompt, which nothing stands before.
MaybeScored = Sequence[Score | None]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model's ids look.  special_ids: left out of a text that the model wrote."""

    bytes_of: BytesOf
    special_ids: frozenset[int]


class Scores(Protocol):
    """Spells the scores of one choice, piece by piece."""

    def piece(self, ids: Sequence[int], scores: MaybeScored) -> Any:
        """Of the next ids; None for none."""
        ...

    def joined(self, pieces: Sequence[Any]) -> Any: ...


@dataclass(slots=True)
class ChatScores:
    bytes_of: BytesOf

    def piece(self, ids: Sequence[int], scores: MaybeScored) -> Any:
        content = [
            self._entry(token_id, score.logprob)
            | {"top_logprobs": [self._entry(other, logprob) for other, logprob in score.top]}
            for token_id, score in zip(ids, scores, strict=True)
            if score is not None
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
    """text_len: where the next id's text begins, in characters.  echoed: the text's beginning."""

    spelling: Spelling
    echoed: str = ""
    text_len: int = 0
    _utf8: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def piece(self, ids: Sequence[int], scores: MaybeScored) -> Any:
        offsets = []
        for each in ids:
            offsets.append(self.text_len)
            self.text_len += self._shown_len(each)
        spelled = {
            "tokens": [self._token(each) for each in ids],
            "token_logprobs": [None if score is None else score.logprob for score in scores],
            "top_logprobs": [None if score is None else self._top(score) for score in scores],
            "text_offset": offsets,
        }
        return spelled if ids else None

    def joined(self, pieces: Sequence[Any]) -> Any:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [each for piece in pieces for each in piece[name]] for name in names}

    def _top(self, score: Score) -> dict[str, float]:
        named: dict[str, float] = {}
        for each, logprob in score.top:
            named.setdefault(self._token(each), logprob)  # of two that look alike the better one
        return named

    def _token(self, token_id: int) -> str:
        """The id's text; of one that is no whole characters its bytes, as OpenAI spells them."""
        raw = self.spelling.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _shown_len(self, token_id: int) -> int:
        """Characters that become whole with the id; a special one shows where it was given."""
        is_shown = token_id not in self.spelling.special_ids or self.echoed.startswith(
            self._token(token_id), self.text_len
        )
        return len(self._utf8.decode(self.spelling.bytes_of(token_id))) if is_shown else 0


__all__ = ["ChatScores", "Scores", "Spelling", "TextScores"]
