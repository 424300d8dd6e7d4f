"""What `kakeya bench` decodes: real requests of four kinds, short enough for a small model."""

from __future__ import annotations

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
