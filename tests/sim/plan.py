"""A run as data: who is there, what goes wrong when, which texts are asked for.

A plan can be kept, cut down and run again; nothing in a run is drawn that is not here or follows
from its seed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Level = Literal["fleet", "nodes"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong (or right again) at `at_s`; what on, to and value mean is
    the kind's matter."""

    at_s: float
    kind: str
    on: str = ""
    to: str = ""
    value: float = 0.0


@dataclass(frozen=True)
class Text:
    """One generation asked of node `on`; cancel_after_s inf: it is heard to its end."""

    at_s: float
    on: str
    prompt: int
    max_tokens: int
    draft_on: str = "auto"
    num_drafts: int = 0
    exact: str = ""
    window: int = 0
    temperature: float = 0.0
    proposer: str = ""
    restored: bool = False
    cancel_after_s: float = float("inf")


@dataclass(frozen=True)
class Plan:
    """`names` run nodes, all given the addresses of `seeds`; `verifiers` of them decode texts.

    ending: what the calm ends with, to see a bound held: "", death, leave, partition or loss.
    """

    level: Level
    seed: int
    names: tuple[str, ...]
    seeds: tuple[str, ...]
    verifiers: tuple[str, ...]
    storm_s: float
    # From tick to tick of gossip; a lifetime is twelve of them.
    interval_s: float
    ending: str
    blur: float
    faults: tuple[Fault, ...]
    texts: tuple[Text, ...]

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)

    def with_texts(self, texts: tuple[Text, ...]) -> Plan:
        return replace(self, texts=texts)

    @property
    def ttl_s(self) -> float:
        return 12 * self.interval_s

    @property
    def size(self) -> int:
        return len(self.faults) + len(self.texts)


def to_json(plan: Plan) -> str:
    """A line for the head, a line a fault, a line a text: readable where a run is looked into."""
    head = asdict(plan)
    faults, texts = head.pop("faults"), head.pop("texts")
    lines = [json.dumps(head)[:-1] + ', "faults": [']
    lines += [",\n".join("  " + json.dumps(_told(fault)) for fault in faults)]
    lines += ['], "texts": [']
    lines += [",\n".join("  " + json.dumps(_told(text)) for text in texts)]
    return "\n".join([*lines, "]}"]) + "\n"


def _told(item: dict[str, Any]) -> dict[str, Any]:
    """Without what is at its default."""
    return {
        key: value for key, value in item.items() if value not in ("", 0.0, False, float("inf"))
    }


def from_json(text: str) -> Plan:
    fields = json.loads(text)
    return Plan(
        **{
            **fields,
            "names": tuple(fields["names"]),
            "seeds": tuple(fields["seeds"]),
            "verifiers": tuple(fields["verifiers"]),
            "faults": tuple(Fault(**{"at_s": 0.0, **each}) for each in fields["faults"]),
            "texts": tuple(Text(**{"at_s": 0.0, "prompt": 0, **each}) for each in fields["texts"]),
        }
    )
