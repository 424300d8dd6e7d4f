"""Text out of ids that come one by one: whole characters as soon as they are certain.

However the ids are cut into pushes, the chunks joined (with what flush gives) are exactly what
the tokenizer makes of all ids at once.  Each id costs a bounded amount of work, amortised.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")
# Decoders that append: the text of more ids begins with the text of fewer, but for byte runs.
_APPENDING = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


class TextStream(Protocol):
    """Turns ids into text as they come."""

    def push(self, ids: Sequence[int]) -> str:
        """The whole characters that became certain with `ids`."""
        ...

    def flush(self) -> str:
        """What is left at the end: unfinished characters as the tokenizer shows them."""
        ...


def text_stream(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> TextStream:
    """The stream that suits the tokenizer's decoder.  Special ids are left out of the text."""
    steps = _decoder_steps(backend)
    if steps == ["ByteLevel"]:
        return ByteLevelStream(backend, special_ids)
    if set(steps) <= _APPENDING:
        return AppendingStream(backend, special_ids)
    return WholeStream(backend)


def byte_of_char() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for.

    Printable Latin-1 stands for itself; the 68 other bytes, in order, are U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = byte_of_char()


class ByteLevelStream:
    """For byte-level BPE: a token is bytes, a character may span tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join(self._bytes_of(each) for each in ids))

    def flush(self) -> str:
        return self._utf8.decode(b"", True)

    def _bytes_of(self, token_id: int) -> bytes:
        token = None if token_id in self._special_ids else self._backend.id_to_token(token_id)
        if token is None:
            return b""
        try:
            return bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:  # an added token, written as plain text
            return str(token).encode()


class AppendingStream:
    """For sentencepiece-like vocabularies.

    A run of byte tokens is decoded as a whole (one bad byte spoils it), so it is held until
    another token ends it.  The text of new ids is what they add behind the ids before them.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._before: list[int] = []
        self._run: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self._push(each) for each in ids)

    def flush(self) -> str:
        run, self._run = self._run, []
        return self._settle(run) if run else ""

    def _push(self, token_id: int) -> str:
        token = None if token_id in self._special_ids else self._backend.id_to_token(token_id)
        if token is None:
            return ""
        if _BYTE_TOKEN.match(token):
            self._run.append(token_id)
            return ""
        return self.flush() + self._settle([token_id])

    def _settle(self, group: list[int]) -> str:
        before = self._decode(self._before)
        both = self._decode(self._before + group)
        # Ids without text of their own stay: a leading space may have been stripped from them,
        # and must not be stripped from the next.
        self._before = group if self._decode(group) else self._before + group
        return both[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._backend.decode(ids, skip_special_tokens=True)) if ids else ""


class WholeStream:
    """For decoders that may change what was already shown: everything comes at the end."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._ids: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        self._ids.extend(ids)
        return ""

    def flush(self) -> str:
        ids, self._ids = self._ids, []
        return str(self._backend.decode(ids, skip_special_tokens=True))


def token_bytes(backend: tokenizers.Tokenizer) -> Callable[[int], bytes]:
    """What an id stands for by itself: its bytes; a special token as it is written."""
    is_byte_level = _decoder_steps(backend) == ["ByteLevel"]

    def bytes_of(token_id: int) -> bytes:
        token = backend.id_to_token(token_id)
        if token is None:
            return b""
        if is_byte_level and all(char in _BYTE_OF_CHAR for char in token):
            return bytes(_BYTE_OF_CHAR[char] for char in token)
        if not is_byte_level and _BYTE_TOKEN.match(token):
            return bytes([int(token[3:5], 16)])
        return str(token).replace("\u2581", " ").encode()

    return bytes_of


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[str]:
    """The types of the decoder's steps, flattened; ["None"] without a decoder."""
    if backend.decoder is None:
        return ["None"]
    state = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [str(step["type"]) for step in steps]
