"""tokenizer.json and tokenizer_config.json from the vocabulary a GGUF file carries.

Byte-level BPE only.  The text is split as GPT-2 splits it, which is what transformers makes of
the same file, so ids are equal to its ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# GGUF's kinds of token: 3 is a control token, never made from plain text.
CONTROL = 3


def tokenizer_files(value: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """The two files by name.  `value` gives a GGUF field's content."""
    assert value("tokenizer.ggml.model") == "gpt2"
    tokens: list[str] = value("tokenizer.ggml.tokens")
    kinds: list[int] = value("tokenizer.ggml.token_type")
    special = [i for i, kind in enumerate(kinds) if kind == CONTROL]
    return {
        "tokenizer.json": _tokenizer(tokens, special, value("tokenizer.ggml.merges")),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": bool(value("tokenizer.ggml.add_bos_token")),
            "add_prefix_space": bool(value("tokenizer.ggml.add_space_prefix")),
            "clean_up_tokenization_spaces": False,
            "model_max_length": int(value("llama.context_length")),
            "bos_token": tokens[value("tokenizer.ggml.bos_token_id")],
            "eos_token": tokens[value("tokenizer.ggml.eos_token_id")],
            "unk_token": tokens[value("tokenizer.ggml.unknown_token_id")],
            "pad_token": tokens[value("tokenizer.ggml.padding_token_id")],
            "chat_template": value("tokenizer.chat_template"),
        },
    }


def _tokenizer(tokens: list[str], special: list[int], merges: list[str]) -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(token_id, tokens[token_id]) for token_id in special],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in merges],
        },
    }


def _special(token_id: int, text: str) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
