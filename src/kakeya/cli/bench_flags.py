"""The flags of `kakeya bench`, and what they may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from kakeya.errors import demand

# What node.max_generations and its queue take by default.
MAX_CONCURRENCY = 64


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    node: Annotated[str | None, Parameter(help="HOST:PORT of the node to ask.")] = None
    embedded: Annotated[bool, Parameter(negative="", help="Run a node in this process.")] = False
    prompt_file: Annotated[
        str | None, Parameter(help="Prompts of your own: one JSON string a line.")
    ] = None
    held_out: Annotated[
        int | None,
        Parameter(help="So many pieces of Python's library; the tiny models never saw them."),
    ] = None
    max_tokens: Annotated[int, Parameter(help="Most tokens a generation.")] = 64
    rounds: Annotated[int, Parameter(help="Times each pair is measured.")] = 3
    concurrency: Annotated[
        str,
        Parameter(
            help="Generations at once; their speeds add up. A list such as 1,2,4,8, or --proposer:"
            " with the drafter on a core of its own and on the verifier's."
        ),
    ] = "1"
    rtt: Annotated[
        str, Parameter(help="Draft on a node of its own this far away, such as 50ms.")
    ] = ""
    busy: Annotated[bool, Parameter(negative="", help="Keep one core busy meanwhile.")] = False
    verify: Annotated[bool, Parameter(negative="", help="Only compare the ids.")] = False
    json: Annotated[bool, Parameter(negative="", help="Print JSON.")] = False


def concurrencies_of(text: str) -> list[int]:
    """1,2,4,8 as numbers.  Raises Refused."""
    found = []
    for part in text.split(","):
        number = int(part) if part.strip().isdecimal() else 0
        demand(
            1 <= number <= MAX_CONCURRENCY,
            "INVALID_ARGUMENT",
            f"--concurrency is {part}, at least 1 and at most {MAX_CONCURRENCY}",
        )
        found.append(number)
    return found


def seconds_of(text: str) -> float:
    """50ms, 0.05s or 0.05 in seconds.  Raises Refused."""
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = -1.0
    demand(0 < seconds <= 10, "INVALID_ARGUMENT", f"--rtt is {text!r}, such as 50ms, at most 10s")
    return seconds
