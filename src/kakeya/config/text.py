"""Limits of text work: tokenizer files, chat templates and what they may make."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextLimits:
    # The largest published tokenizer.json are about 35 MB.
    max_tokenizer_bytes: int = 128 << 20
    # tokenizer_config.json of some models lists thousands of added tokens.
    max_config_bytes: int = 8 << 20
    max_template_chars: int = 256 << 10
    # Four characters a token: a context of a million tokens.
    max_rendered_chars: int = 4 << 20
    # Attribute look-ups, calls, operators and numbers of ranges a template may use in one
    # rendering: 100 × what the largest published templates need for 200 messages.
    max_template_steps: int = 1_000_000
