"""Chunks joined are what the tokenizer makes of all ids at once, wherever they were cut."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kakeya.verifying.text_stream import byte_of_char, text_stream

TEXTS = [
    "plain words, 12 of them",
    "안녕하세요 세계",
    "ď Ď kůň příliš žluťoučký",
    "👨‍👩‍👧‍👦 family",
    "a\ufffdb",
    "  two  spaces\n\tand a tab",
]


def byte_level() -> Tokenizer:
    """Ids 0 … 255 are bytes; 256 is special; 257 is an added token of plain text."""
    chars = {byte: char for char, byte in byte_of_char().items()}
    vocab = {chars[byte]: byte for byte in range(256)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    made.add_tokens([AddedToken("<tool 한>", normalized=False)])
    return made


def sentencepiece_like() -> Tokenizer:
    """Ids 0 … 255 are byte tokens, then pieces with ▁ for a space, then a special token."""
    pieces = ["▁", "▁a", "b", "▁b", "한", "ď", "▁▁"]
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {piece: 256 + i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, fuse_unk=True))
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<s>"])
    return made


def metaspace() -> Tokenizer:
    made = sentencepiece_like()
    made.decoder = decoders.Metaspace()
    return made


def wordpiece() -> Tokenizer:
    made = sentencepiece_like()
    made.decoder = decoders.WordPiece()
    return made


def without_decoder() -> Tokenizer:
    made = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    made.add_special_tokens(["<s>"])
    return made


def special_ids(backend: Tokenizer) -> frozenset[int]:
    return frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)


def chunks(backend: Tokenizer, ids, cuts=None) -> list[str]:
    stream = text_stream(backend, special_ids(backend))
    pushes = cuts or [[each] for each in ids]
    return [*(stream.push(each) for each in pushes), stream.flush()]


KINDS = [byte_level, sentencepiece_like, metaspace, wordpiece, without_decoder]


@pytest.mark.parametrize("make", KINDS)
def test_any_ids_in_any_pushes_give_the_same_text(make):
    backend = make()
    size = backend.get_vocab_size()
    for seed in range(400):
        rng = random.Random(seed)
        low = rng.choice([0, max(0, size - 12)])
        ids = [rng.randrange(low, size + 1) for _ in range(rng.randrange(1, 25))]
        at = sorted(rng.sample(range(len(ids) + 1), k=min(3, len(ids))))
        cuts = [ids[a:b] for a, b in zip([0, *at], [*at, len(ids)], strict=True)]
        whole = backend.decode(ids, skip_special_tokens=True)
        assert "".join(chunks(backend, ids)) == whole, f"seed {seed}: {ids}"
        assert "".join(chunks(backend, ids, cuts)) == whole, f"seed {seed}: {ids}"


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_become_whole_characters_as_soon_as_they_are_whole(text):
    got = chunks(byte_level(), text.encode())
    assert "".join(got) == text
    # Each character comes with its last byte, and nothing is left for the end.
    assert [chunk for chunk in got if chunk] == list(text)
    assert got[-1] == ""


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_cut_inside_a_character_shows_one_mark_at_the_end(text):
    data = text.encode()
    for length in range(len(data)):
        got = chunks(byte_level(), data[:length])
        assert "".join(got) == data[:length].decode("utf-8", "replace")
        assert "\ufffd" not in "".join(got[:-1]).replace("a\ufffd", "")


def test_an_invalid_byte_then_a_space_shows_the_bad_byte_once():
    assert chunks(byte_level(), [0x61, 0xFF, 0x20, 0x62]) == ["a", "\ufffd", " ", "b", ""]
    # The beginning of a character is bad only when the next byte does not go on with it.
    assert chunks(byte_level(), [0xE2, 0x82, 0x20]) == ["", "", "\ufffd ", ""]


def test_special_ids_and_ids_beyond_the_vocabulary_make_no_text():
    backend = byte_level()
    assert chunks(backend, [0x61, 256, 99_999, 0x62]) == ["a", "", "", "b", ""]
    assert chunks(backend, [257]) == ["<tool 한>", ""]


def test_a_run_of_byte_tokens_waits_for_its_end():
    run = list("한".encode())
    assert chunks(sentencepiece_like(), [257, *run, 258]) == ["a", "", "", "", "한b", ""]
    assert chunks(sentencepiece_like(), [257, *run]) == ["a", "", "", "", "한"]


class CountingBackend:
    """Counts the ids handed to decode."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.decoder = backend.decoder
        self.num_ids = 0

    def id_to_token(self, token_id):
        return self._backend.id_to_token(token_id)

    def decode(self, ids, skip_special_tokens):
        self.num_ids += len(ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, metaspace])
def test_each_id_costs_a_bounded_amount_of_work(make):
    backend = CountingBackend(make())
    ids = [257, *([0xE2] * 500), 258, *([258] * 2000)]
    stream = text_stream(backend, frozenset())
    for each in ids:
        stream.push([each])
    stream.flush()
    assert backend.num_ids <= 6 * len(ids)
