"""What `kakeya bench` makes of its measurements: pairs of generations, and a row for each kind."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from kakeya.cli.generate import mean_acceptance_length


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt decoded plainly and with drafts, one right after the other.

    kind: of prompt.  draft_on: what was asked for: auto, local, remote or a node_id.  asked: the
    proposer that was named, "" for any.
    """

    kind: str
    draft_on: str
    asked: str
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


def summary(kind: str, draft_on: str, asked: str, pairs: list[Pair]) -> dict[str, Any]:
    """One row: all pairs of a kind of prompt, drafted in one place by one proposer."""
    wanted = (kind, draft_on, asked)
    mine = [pair for pair in pairs if (pair.kind, pair.draft_on, pair.asked) == wanted]
    blocks = [b for pair in mine for b in pair.drafted["blocks"] if b["num_drafts"]]
    return {
        "kind": kind,
        "prompts": len(mine),
        "draft_on": draft_on,
        "asked": asked or None,
        "proposer": ", ".join(sorted({b["proposer"] or "" for b in blocks})) or None,
        "drafted_on": sorted({b["drafted_on"] or "" for b in blocks}),
        "tokens_per_second": _median(p.drafted["timings"]["tokens_per_second"] for p in mine),
        "plain_tokens_per_second": _median(p.plain["timings"]["tokens_per_second"] for p in mine),
        "prefill_s": _median(p.drafted["timings"]["prefill_s"] for p in mine),
        "ratio": _median(p.ratio for p in mine),
        "mean_acceptance_length": round(mean_acceptance_length(blocks), 3),
        "acceptance_by_position": acceptance_by_position(blocks),
        "ids_equal": all(pair.ids_equal for pair in mine),
    }


def _median(values: Any) -> float:
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
