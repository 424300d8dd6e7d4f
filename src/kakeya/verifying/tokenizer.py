"""Text to ids and back, by the tokenizer.json of a model's folder.

Reads three small files beside it for what ends a text.  Bytes that come token by token are
text_stream's business, conversations are chat's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from kakeya.compute.weight_files import readable
from kakeya.config.text import TextLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.chat import ChatTemplate, load_template
from kakeya.verifying.text_stream import TextStream, text_stream, token_bytes


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A vocabulary.  eos_ids: each ends a text.  special_ids: never shown in text.

    template is None for a model without a chat template.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_token: str
    eos_token: str
    special_ids: frozenset[int]
    template: ChatTemplate | None

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of `text`; special tokens written out in it count as such."""
        # A batch of one: unlike `encode` it lets other threads run meanwhile.
        [encoding] = self.backend.encode_batch([text], add_special_tokens=add_special)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> TextStream:
        """A new TextStream: its chunks joined equal `decode` of all ids pushed."""
        return text_stream(self.backend, self.special_ids)

    def token_bytes(self) -> Callable[[int], bytes]:
        """Tells the bytes an id stands for by itself; a special token as it is written."""
        return token_bytes(self.backend)

    def render_chat(self, messages: Sequence[dict[str, Any]], *, wall: Callable[[], float]) -> str:
        """The prompt of a conversation, ready for the assistant's answer.  Raises Refused."""
        if self.template is None:
            raise Refused("FAILED_PRECONDITION", "the model has no chat template")
        return self.template.render(
            messages, bos_token=self.bos_token, eos_token=self.eos_token, wall=wall
        )


def load_tokenizer(folder: Path, limits: TextLimits | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face layout folder.

    Raises Refused: NOT_FOUND without tokenizer.json, INVALID_ARGUMENT for files we cannot read.
    """
    limits = limits or TextLimits()
    backend = _load_backend(folder / "tokenizer.json", limits)
    config = _read_json(folder / "tokenizer_config.json", limits)
    bos_token, eos_token = _content(config.get("bos_token")), _content(config.get("eos_token"))
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    return Tokenizer(
        backend=backend,
        vocab_size=vocab_size,
        eos_ids=_eos_ids(folder, backend, eos_token, limits),
        bos_token=bos_token,
        eos_token=eos_token,
        special_ids=frozenset(i for i, token in added.items() if token.special),
        template=load_template(folder, config, limits),
    )


def _load_backend(path: Path, limits: TextLimits) -> tokenizers.Tokenizer:
    text = _read_text(path, limits.max_tokenizer_bytes)
    if text is None:
        raise Refused("NOT_FOUND", "the model's folder holds no tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    # The library raises plain Exception for whatever is wrong in the file.
    except Exception as error:  # noqa: BLE001
        first_line = str(error).splitlines()[0][:200]
        raise Refused("INVALID_ARGUMENT", f"tokenizer.json cannot be read: {first_line}") from None
    # A folder's saved training settings must not cut or pad a prompt.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _eos_ids(
    folder: Path, backend: tokenizers.Tokenizer, eos_token: str, limits: TextLimits
) -> tuple[int, ...]:
    """generation_config.json rules, else config.json; the tokenizer's own token always ends."""
    found: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        named = _read_json(folder / name, limits).get("eos_token_id")
        if named is not None:
            found = list(named) if isinstance(named, list) else [named]
            break
    if eos_token:
        found.append(backend.token_to_id(eos_token))
    ids = {each for each in found if each is not None}
    for each in ids:
        demand(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 32,
            "INVALID_ARGUMENT",
            f"eos_token_id is {each!r}, it must be a token id",
        )
    return tuple(sorted(ids))


def _content(token: Any) -> str:
    """A special token's text, spelled as a text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _read_json(path: Path, limits: TextLimits) -> dict[str, Any]:
    """The object in `path`, empty when there is no such file."""
    text = _read_text(path, limits.max_config_bytes)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("INVALID_ARGUMENT", f"{path.name} is not JSON") from None
    demand(isinstance(found, dict), "INVALID_ARGUMENT", f"{path.name} is not a JSON object")
    return dict(found)


def _read_text(path: Path, max_bytes: int) -> str | None:
    with readable(path):
        if not path.is_file():
            return None
        size = path.stat().st_size
        demand(
            size <= max_bytes,
            "INVALID_ARGUMENT",
            f"{path.name} has {size} bytes, the limit is {max_bytes}",
        )
        found = path.read_bytes()
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise Refused("INVALID_ARGUMENT", f"{path.name} is not UTF-8") from None
