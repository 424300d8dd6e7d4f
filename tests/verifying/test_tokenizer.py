"""What a folder's small files say about its tokenizer, and how they are refused."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kakeya.config.text import TextLimits
from kakeya.errors import Refused
from kakeya.verifying.text_stream import byte_of_char
from kakeya.verifying.tokenizer import load_tokenizer


@pytest.fixture
def folder(tmp_path):
    made = Tokenizer(models.BPE(vocab=byte_of_char(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "<|end|>"])
    made.enable_truncation(4)
    made.enable_padding(length=16)
    made.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"bos_token": {"content": "<s>"}})
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_text_goes_to_ids_and_back_uncut_and_unpadded(folder):
    tokenizer = load_tokenizer(folder)
    text = "한 ď 👨‍👩‍👧‍👦 and more"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode([256, *text.encode(), 257]) == text
    assert (tokenizer.vocab_size, tokenizer.special_ids) == (258, frozenset({256, 257}))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "")


def test_generation_config_rules_what_ends_a_text_and_the_tokenizers_token_always_does(folder):
    assert load_tokenizer(folder).eos_ids == ()
    write(folder, "config.json", {"eos_token_id": 7})
    assert load_tokenizer(folder).eos_ids == (7,)
    write(folder, "generation_config.json", {"eos_token_id": [9, 8]})
    assert load_tokenizer(folder).eos_ids == (8, 9)
    write(folder, "tokenizer_config.json", {"eos_token": "<|end|>"})
    assert load_tokenizer(folder).eos_ids == (8, 9, 257)


def test_a_model_without_a_template_refuses_conversations(folder):
    with pytest.raises(Refused, match="FAILED_PRECONDITION: the model has no chat template"):
        load_tokenizer(folder).render_chat([], wall=lambda: 0.0)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer.json", "no", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is not JSON"),
        ("tokenizer_config.json", "[1]", "not a JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "is not JSON"),
        ("config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x'"),
        ("config.json", '{"eos_token_id": -1}', "eos_token_id is -1"),
    ],
)
def test_a_broken_file_is_refused_by_name(folder, name, content, named):
    write(folder, name, content)
    with pytest.raises(Refused, match="INVALID_ARGUMENT") as caught:
        load_tokenizer(folder)
    assert named in caught.value.why


def test_a_missing_or_huge_tokenizer_is_refused(folder, tmp_path_factory):
    with pytest.raises(Refused, match="NOT_FOUND"):
        load_tokenizer(tmp_path_factory.mktemp("empty"))
    with pytest.raises(Refused, match="the limit is 10"):
        load_tokenizer(folder, TextLimits(max_tokenizer_bytes=10))
