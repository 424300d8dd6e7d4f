"""A small chat model of random weights, in a folder as `--verifier` takes it.

Its ids are bytes, and what it says soon repeats itself: there is something to copy.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from kakeya.verifying.text_stream import byte_of_char

# 256 bytes, and what stands for a Korean syllable and an emoji, so that whole characters come too.
VOCAB_SIZE = 320
SPECIAL = ["<s>", "<|end|>"]
WORDS = ["한", "국", "ď", "👍", " the", "ing"]


def write_folder(folder: Path, *, seed: int, hidden_size: int = 128, num_layers: int = 4) -> Path:
    """Model, tokenizer and no chat template: a prompt is the bytes of its text."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.15,
        tie_word_embeddings=False,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        # The last token says most of what comes next, the ones before it something: the text runs
        # in circles and leaves them, so that drafts are accepted, cut short and rejected.
        model.model.embed_tokens.weight.mul_(10)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
        model.lm_head.weight[257].zero_()  # it never ends by itself: lengths are known
    model.save_pretrained(folder)
    chars = {byte: char for char, byte in byte_of_char().items()}
    made = Tokenizer(models.BPE(vocab={chars[byte]: byte for byte in range(256)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    fillers = [f"<{number}>" for number in range(VOCAB_SIZE - 256 - len(SPECIAL) - len(WORDS))]
    made.add_tokens(WORDS + fillers)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder
