"""The words of the glossary are the words of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.spec_tables import table

SRC = Path(__file__).resolve().parents[1] / "src" / "kakeya"
PLANNED = {"block_len"}  # met inside the drafting engines


def test_every_code_name_in_the_glossary_stands_in_the_source():
    source = "\n".join(path.read_text() for path in SRC.rglob("*.py"))
    names = {name for _, name, _ in table("glossary.md", "word", "in code", "meaning") if name}
    assert {name for name in names if not re.search(rf"\b{name}\b", source)} - PLANNED == set()


def test_every_word_stands_once():
    words = [word for word, _, _ in table("glossary.md", "word", "in code", "meaning")]
    assert len(words) == len(set(words))
