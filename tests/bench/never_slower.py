"""Never slower than plain decoding, whoever drafts: `python -m tests.bench.never_slower`.

One verifier (tiny) and, one after the other, good and bad proposers over the real wire: a drafter,
one that copies, one that drafts wrongly at once, a drafter whose weights are noise, one 200 ms
late, a drafter a round trip of 200 ms away, and two that are killed with kill -9 (every 2 s, a
drafter every 6) and started again; at the end all of them together.  Each prompt is decoded
plainly and with the node's own policy, in turns.  Rates count from the sixth block on; 0.95 of
plain decoding is wanted, the ids must be equal.

The text is sampled: greedy text of so small a model repeats itself, and then the verifier's own
n-gram hides whatever else is wrong (`--temperature 0` shows that).  On Linux the verifier has a
core of its own: hosts that die do not compute on it.
"""

# ruff: noqa: T201 - a command that prints what it found
from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kakeya.cli.bench_cores import Cores, held_here, hold, two_cores
from kakeya.cli.bench_prompts import held_out
from tests.bench.peers import Peer, peers_of, present
from tests.cli.nodes import NodeProcess, eventually, fleet_view, running_node
from tests.live.client import Heard, hear

# Blocks a generation has to find out whom to leave alone.
NUM_FIRST_BLOCKS = 5
WANTED_RATIO = 0.95


def rate_of(heard: Heard, num_first: int = NUM_FIRST_BLOCKS) -> float:
    """Tokens a second as a client sees them, after the first blocks."""
    num_ids = sum(length for length, _ in heard.rounds[num_first:])
    return num_ids / max(sum(heard.waits_s[num_first:]), 1e-9)


@dataclass
class Row:
    """What one way to draft gave beside plain decoding."""

    way: str
    rates: list[float] = field(default_factory=list)
    plain_rates: list[float] = field(default_factory=list)
    num_equal: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)

    def add(self, plain: Heard, heard: Heard) -> None:
        self.rates.append(rate_of(heard))
        self.plain_rates.append(rate_of(plain))
        self.num_equal += heard.ids == plain.ids
        self.num_rounds += len(heard.rounds)
        self.num_drafted += len(heard.drafters)
        self.num_accepted += heard.num_accepted
        for reason, count in heard.fallbacks.items():
            self.fallbacks[reason] = self.fallbacks.get(reason, 0) + count

    def as_dict(self) -> dict[str, Any]:
        ratios = [a / b for a, b in zip(self.rates, self.plain_rates, strict=True)]
        ratio = round(statistics.median(ratios), 3)
        return {
            "way": self.way,
            "prompts": len(ratios),
            "plain_tokens_per_second": round(statistics.median(self.plain_rates), 1),
            "tokens_per_second": round(statistics.median(self.rates), 1),
            "ratio": ratio,
            "worst_ratio": round(min(ratios), 3),
            "is_never_slower": ratio >= WANTED_RATIO,
            "drafted_share": round(self.num_drafted / max(self.num_rounds, 1), 3),
            "acceptance_length": round(1 + self.num_accepted / max(self.num_drafted, 1), 3),
            "fallbacks": self.fallbacks,
            "num_equal": self.num_equal,
            "ids_equal": self.num_equal == len(ratios),
        }


def measure_way(
    verifier: NodeProcess, prompts: Sequence[str], row: Row, wanted: argparse.Namespace, **how: str
) -> Row:
    """Each prompt plainly and drafted as `how` says, taking turns at going first."""
    for number in range(wanted.rounds):
        for prompt in prompts:
            asked = {
                "text": prompt, "raw": True, "max_tokens": wanted.tokens,
                "temperature": wanted.temperature, "seed": number + 1,
            }  # fmt: skip
            if number % 2:
                heard = hear(verifier.grpc, **asked, **how)
                plain = hear(verifier.grpc, **asked, plain=True)
            else:
                plain = hear(verifier.grpc, **asked, plain=True)
                heard = hear(verifier.grpc, **asked, **how)
            row.add(plain, heard)
    return row


def know(verifier: NodeProcess, peer: Peer, home: Path) -> None:
    """Wait until the verifier knows what the peer drafts with."""

    def serves() -> bool:
        node = fleet_view(verifier, home).get(peer.name, {})
        return peer.proposer in [model["model_id"] for model in node.get("models", [])]

    eventually(serves)


def rows_of(wanted: argparse.Namespace, cores: Cores | None) -> list[dict[str, Any]]:
    """A row for each peer that was asked for, and one for all of them at once."""
    prompts = held_out(wanted.prompts, seed=wanted.seed)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        given = ("--verifier", "tiny", "--node-id", "verifier", "--http-port", "off")
        quick = ("--fleet-interval", "1", "--log-level", "error")
        verifier = stack.enter_context(running_node(home, *given, *quick))
        if cores is not None:
            hold(verifier.process.pid, cores.verifying)
        hear(verifier.grpc, text="def", raw=True, max_tokens=64)
        rows = [measure_way(verifier, prompts, Row("ngram"), wanted, draft_on="local")]
        show(wanted, rows[-1])
        peers = [peer for peer in peers_of(home, verifier.grpc) if peer.name in wanted.peers]
        for peer in peers:
            with present(peer):
                know(verifier, peer, home)
                how = {"draft_on": peer.name, "proposer": peer.proposer}
                rows.append(measure_way(verifier, prompts, Row(peer.name), wanted, **how))
                show(wanted, rows[-1])
        for peer in peers:
            stack.enter_context(present(peer))
            know(verifier, peer, home)
        rows.append(measure_way(verifier, prompts, Row("all of them"), wanted))
        show(wanted, rows[-1])
        return [row.as_dict() for row in rows]


def show(wanted: argparse.Namespace, row: Row) -> None:
    if not wanted.json:
        print(line_of(row.as_dict()), flush=True)


def line_of(row: dict[str, Any]) -> str:
    slower = "" if row["is_never_slower"] else "  SLOWER"
    return (
        f"{row['way']:14} {row['tokens_per_second']:8.1f} tokens/s beside"
        f" {row['plain_tokens_per_second']:7.1f}  ratio {row['ratio']:.3f}"
        f" (worst {row['worst_ratio']:.3f})"
        f"  drafted {row['drafted_share']:.2f}  acceptance {row['acceptance_length']:.2f}"
        f"  ids equal {row['num_equal']} of {row['prompts']}  {row['fallbacks'] or ''}{slower}"
    )


ALL_PEERS = ("drafter", "copying", "wrong", "noise", "late", "far", "dying", "dying-drafter")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peers", nargs="+", choices=ALL_PEERS, default=ALL_PEERS)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(argv)
    cores = two_cores()
    with held_here(cores):
        rows = rows_of(wanted, cores)
    if wanted.json:
        print(json.dumps({"never_slower": rows}))
    return 0 if all(row["ids_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
