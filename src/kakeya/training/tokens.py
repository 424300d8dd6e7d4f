"""The tiny set's tokenizer: byte-level BPE with a pre-tokenizer that suits code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
EOS, MASK, PAD, BOS = "<|eos|>", "<|mask|>", "<|pad|>", "<|bos|>"
SPECIALS = (EOS, MASK, PAD, BOS)
EOS_ID, MASK_ID, PAD_ID, BOS_ID = range(4)
# A word with its space; a newline with the indent behind it; one digit; a run of punctuation with
# its space; other white space.
PIECES = r" ?[\p{L}_]+|\n+[ \t]*|\p{N}| ?[^\s\p{L}\p{N}_]+|[ \t\r]+|\s+"
# A base model's "chat": the contents, one behind the other.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of VOCAB_SIZE entries; the specials are its first four ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert [tokenizer.token_to_id(each) for each in SPECIALS] == [EOS_ID, MASK_ID, PAD_ID, BOS_ID]
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as a Hugging Face folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "bos_token": BOS,
        "pad_token": PAD,
        "mask_token": MASK,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> NDArray[np.uint16]:
    """All texts as one row of ids, an EOS_ID behind each."""
    rows = [np.array([*each.ids, EOS_ID], np.uint16) for each in tokenizer.encode_batch(texts)]
    return np.concatenate(rows)
