"""What `kakeya bench` decodes: real requests of four kinds, short enough for a small model.

And, for the tiny models, pieces of Python's standard library that they were not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kakeya.cli.bench_flags import BenchFlags
from kakeya.cli.generate import read_prompts
from kakeya.cli.generate_flags import GenerateFlags
from kakeya.config.settings import Settings
from kakeya.embedded.models import TINY
from kakeya.errors import demand
from kakeya.training.corpus import read_sources, standard_library

# Characters of a held-out file: more than a small window keeps.
CODE_LEN = 700
# Pieces for the tiny verifier, when nothing else was asked for.
NUM_TINY = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """kind: the rows it goes to.  is_raw: it is sent without chat template."""

    kind: str
    text: str
    is_raw: bool = False


def prompts_for(asked: BenchFlags, settings: Settings) -> list[Prompt]:
    """What to decode.  Raises Refused."""
    if asked.prompt_file is not None:
        given = GenerateFlags(prompt_file=asked.prompt_file)
        return [Prompt("given", text) for text in read_prompts("", given)]
    is_tiny = settings.verifier == TINY and not asked.node
    if asked.held_out is None and not is_tiny:
        return [Prompt(kind, text) for kind, text in PROMPTS]
    count = NUM_TINY if asked.held_out is None else asked.held_out
    return [Prompt("held-out code", text, is_raw=True) for text in held_out(count, seed=1)]


def held_out(count: int, *, seed: int) -> list[str]:
    """`count` pieces of held-out files of the standard library, each from the start of a line.

    Raises Refused when there are not so many files.
    """
    rng = Random(seed)
    sources = [
        source.text
        for source in read_sources(standard_library(), held_out=True)
        if len(source.text) > 3 * CODE_LEN
    ]
    demand(
        1 <= count <= len(sources),
        "INVALID_ARGUMENT",
        f"{count} held-out prompts asked for, at least 1 and at most {len(sources)}",
    )
    pieces = []
    for text in rng.sample(sources, count):
        at = text.index("\n", rng.randrange(len(text) - 2 * CODE_LEN)) + 1
        pieces.append(text[at : at + CODE_LEN])
    return pieces


_TOTAL = """def total(rows):
    result = 0
    for row in rows:
        if row is None:
            continue
        result += row["price"] * row["count"]
    return result
"""
_STACK = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""
# Melville 1851 and Dickens 1859, both in the public domain.
_MOBY_DICK = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in "
    "my purse, and nothing particular to interest me on shore, I thought I would sail about a "
    "little and see the watery part of the world."
)
_TWO_CITIES = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of foolishness, it was the epoch of belief, it was the epoch of incredulity."
)

PROMPTS: tuple[tuple[str, str], ...] = (
    ("chat", "Why is the sky blue?"),
    ("chat", "Explain what a hash table is."),
    ("chat", "Give me three tips for sleeping better."),
    ("edit", f"Rename the variable result to amount and print the whole code:\n\n{_TOTAL}"),
    ("edit", f"Add a method peek to this class and print the whole class:\n\n{_STACK}"),
    ("quote", f"Quote this passage word for word:\n\n{_TWO_CITIES}"),
    ("quote", f"Copy the following text twice:\n\n{_MOBY_DICK}"),
    (
        "code",
        "Write a Python function that returns the largest number of a list, with a docstring.",
    ),
    ("code", "Write a Python class for a queue with push, pop and len."),
)
