"""What `kakeya bench` makes of its measurements: pairs of generations, and a row for each way."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kakeya.cli.generate import mean_acceptance_length


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode a prompt, and one row of the table.

    name: for people.  draft_on: what is asked for: auto, local, remote or a node_id.  proposer: the
    one that is named, "" for any.  expected: (proposer, node_id) that must draft before anything is
    measured; None: nobody has to.
    """

    name: str
    draft_on: str = "auto"
    proposer: str = ""
    is_plain: bool = False
    expected: tuple[str, str] | None = None


PLAIN = Way("plain", is_plain=True)


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt decoded plainly and in another way, in one turn.  kind: of prompt."""

    kind: str
    way: Way
    plain: dict[str, Any]
    drafted: dict[str, Any]

    @property
    def ids_equal(self) -> bool:
        return bool(self.plain["ids"] == self.drafted["ids"])

    @property
    def ratio(self) -> float:
        """How many times faster than plain decoding."""
        plain_rate = float(self.plain["timings"]["tokens_per_second"])
        return float(self.drafted["timings"]["tokens_per_second"]) / max(plain_rate, 1e-9)


def joined(reports: list[dict[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """Generations that ran at once as if one: prefill and waiting count into their speed."""
    ids = [token_id for report in reports for token_id in report["ids"]]
    timings = reports[0]["timings"] | {"tokens_per_second": len(ids) / elapsed_s}
    blocks = [block for report in reports for block in report["blocks"]]
    return reports[0] | {"ids": ids, "blocks": blocks, "timings": timings}


def rows_of(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """A row for each kind of prompt and each way, in the order they were measured."""
    return [summary(*each, pairs) for each in dict.fromkeys((p.kind, p.way) for p in pairs)]


def summary(kind: str, way: Way, pairs: Iterable[Pair]) -> dict[str, Any]:
    """One row: all pairs of a kind of prompt, decoded in one way.

    tokens_per_round counts every round, those without drafts too; mean_acceptance_length does not.
    """
    mine = [pair for pair in pairs if (pair.kind, pair.way) == (kind, way)]
    rounds = [block for pair in mine for block in pair.drafted["blocks"]]
    blocks = [block for block in rounds if block["num_drafts"]]
    num_ids = sum(len(pair.drafted["ids"]) for pair in mine)
    return {
        "kind": kind,
        "way": way.name,
        "prompts": len(mine),
        "draft_on": way.draft_on,
        "asked": way.proposer or None,
        "proposer": ", ".join(sorted({b["proposer"] or "" for b in blocks})) or None,
        "drafted_on": sorted({b["drafted_on"] or "" for b in blocks}),
        "tokens_per_second": median(p.drafted["timings"]["tokens_per_second"] for p in mine),
        "plain_tokens_per_second": median(p.plain["timings"]["tokens_per_second"] for p in mine),
        "prefill_s": median(p.drafted["timings"]["prefill_s"] for p in mine),
        "ratio": median(p.ratio for p in mine),
        "tokens_per_round": round(num_ids / max(len(rounds), 1), 3),
        "mean_acceptance_length": round(mean_acceptance_length(blocks), 3),
        "acceptance_by_position": acceptance_by_position(blocks),
        "num_equal": sum(pair.ids_equal for pair in mine),
        "ids_equal": all(pair.ids_equal for pair in mine),
    }


def median(values: Iterable[float]) -> float:
    return round(float(statistics.median(values)), 3)


def acceptance_by_position(blocks: list[dict[str, Any]]) -> list[float]:
    """Per position: blocks that had it accepted, over blocks that offered it."""
    longest = max((block["num_drafts"] for block in blocks), default=0)
    shares = []
    for position in range(longest):
        offered = [block for block in blocks if block["num_drafts"] > position]
        accepted = [block for block in offered if block["num_accepted"] > position]
        shares.append(round(len(accepted) / len(offered), 3))
    return shares
