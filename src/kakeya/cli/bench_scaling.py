"""Many generations at once: what it brings that the drafter has a host of its own.

A verifier on one core, its drafter on another, against both on the verifier's core.  Moving the
draft away lets the verifier carry 1 + γ·t_d/t_v times the work (γ drafts a round, t_d the time of
one, t_v of a round of the verifier), which stands beside what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import trio

from kakeya.cli.bench_cores import Cores, held_here, hold, two_cores
from kakeya.cli.bench_flags import BenchFlags, concurrencies_of, seconds_of
from kakeya.cli.bench_ground import until_they_met
from kakeya.cli.bench_nodes import NodePair, node_pair
from kakeya.cli.bench_prompts import Prompt, prompts_for
from kakeya.cli.bench_rows import PLAIN, Way, median
from kakeya.cli.bench_turns import at_once, request_of, until_it_drafts
from kakeya.cli.client import refusal_of, stub_at
from kakeya.cli.flags import NodeFlags
from kakeya.config.settings import Settings
from kakeya.errors import Refused
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub

APART, SHARING = "apart", "sharing"


@dataclass(frozen=True, slots=True)
class Run:
    """So many generations at once, in one way.

    ids: of each.  verify_cpu_s, draft_cpu_s: processor time of the two nodes.  num_drafts: ids
    drafted on the other node.
    """

    ids: tuple[tuple[int, ...], ...]
    elapsed_s: float
    num_rounds: int
    num_drafts: int
    verify_cpu_s: float
    draft_cpu_s: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(each) for each in self.ids) / self.elapsed_s


@dataclass(frozen=True, slots=True)
class Turn:
    """One way after the other; sharing: None where processes cannot be held on cores."""

    plain: Run
    apart: Run
    sharing: Run | None

    @property
    def num_equal(self) -> int:
        others = [run for run in (self.apart, self.sharing) if run is not None]
        return sum(a == b for run in others for a, b in zip(run.ids, self.plain.ids, strict=True))

    @property
    def num_compared(self) -> int:
        return len(self.plain.ids) * (1 if self.sharing is None else 2)


def scaling_row(concurrency: int, turns: Sequence[Turn]) -> dict[str, Any]:
    """What one number of generations at once gave: medians over the turns, ratios within each."""
    sharing = [(turn.apart, turn.sharing) for turn in turns if turn.sharing is not None]
    apart = [turn.apart for turn in turns]
    num_rounds = max(sum(run.num_rounds for run in apart), 1)
    num_drafts = sum(run.num_drafts for run in apart)
    per_round = num_drafts / num_rounds
    t_d = sum(run.draft_cpu_s for run in apart) / num_drafts if num_drafts else 0.0
    t_v = sum(run.verify_cpu_s for run in apart) / num_rounds
    rate = [(run.tokens_per_second, both.tokens_per_second) for run, both in sharing]
    num_plain = sum(len(ids) for turn in turns for ids in turn.plain.ids)
    num_equal = sum(turn.num_equal for turn in turns)
    num_compared = sum(turn.num_compared for turn in turns)
    num_ids = sum(len(ids) for run in apart for ids in run.ids)
    return {
        "concurrency": concurrency,
        "plain_tokens_per_second": median(turn.plain.tokens_per_second for turn in turns),
        "apart_tokens_per_second": median(run.tokens_per_second for run in apart),
        "sharing_tokens_per_second": median(both for _, both in rate) if rate else None,
        "ratio_to_plain": median(
            turn.apart.tokens_per_second / turn.plain.tokens_per_second for turn in turns
        ),
        "ratio_to_sharing": median(alone / both for alone, both in rate) if rate else None,
        "bound": round(1 + per_round * t_d / t_v, 3) if t_v else None,
        "drafts_per_round": round(per_round, 3),
        "t_d_s": round(t_d, 6),
        "t_v_s": round(t_v, 6),
        "plain_token_s": round(sum(turn.plain.verify_cpu_s for turn in turns) / num_plain, 6),
        "tokens_per_round": round(num_ids / num_rounds, 3),
        "num_equal": num_equal,
        "num_compared": num_compared,
        "ids_equal": num_equal == num_compared,
    }


async def measure_scaling(
    asked: BenchFlags, flags: NodeFlags, settings: Settings
) -> tuple[list[dict[str, Any]], Cores | None]:
    """A row for each number of generations at once, and the cores that were held.

    Raises Refused.  Spec: N-18.
    """
    prompts, cores = prompts_for(asked, settings), two_cores()
    rtt_s = seconds_of(asked.rtt) if asked.rtt else 0.0
    with held_here(cores):
        async with (
            node_pair(flags, settings, rtt_s=rtt_s, cores=cores) as pair,
            stub_at(pair.verifying.grpc_address, settings) as stub,
        ):
            bench = _Bench(asked, flags, stub, pair, cores, prompts)
            try:
                return await bench.rows(), cores
            except RpcFailedError as error:
                refused = refusal_of(error)
            except Refused as error:
                refused = error
    raise refused


@dataclass(frozen=True, slots=True)
class _Bench:
    asked: BenchFlags
    flags: NodeFlags
    stub: NodeServiceStub
    pair: NodePair
    cores: Cores | None
    prompts: Sequence[Prompt]

    async def rows(self) -> list[dict[str, Any]]:
        await until_they_met(self.stub, self.pair)
        proposer = self.pair.proposers[0]
        expected = (proposer, self.pair.drafting.node_id)
        await until_it_drafts(
            self.stub, Way(proposer, "remote", proposer, expected=expected), self.flags
        )
        return [
            scaling_row(num, [await self._turn(num, number) for number in range(self.asked.rounds)])
            for num in concurrencies_of(self.asked.concurrency)
        ]

    async def _turn(self, num: int, number: int) -> Turn:
        ways = [PLAIN.name, APART, *([SHARING] if self.cores is not None else [])]
        runs = {}
        # Whoever goes first may find a cooler machine: take turns.
        for name in reversed(ways) if number % 2 else ways:
            runs[name] = await self._run(num, name)
        return Turn(runs[PLAIN.name], runs[APART], runs.get(SHARING))

    async def _run(self, num: int, name: str) -> Run:
        proposer, pair = self.pair.proposers[0], self.pair
        if self.cores is not None:
            core = self.cores.verifying if name == SHARING else self.cores.drafting
            hold(pair.drafting.pid, core)
        way = PLAIN if name == PLAIN.name else Way(name, "remote", proposer)
        requests = [
            request_of(
                self.prompts[i % len(self.prompts)],
                way,
                max_tokens=self.asked.max_tokens,
                flags=self.flags,
            )
            for i in range(num)
        ]
        before = [_cpu_s(node.pid) for node in (pair.verifying, pair.drafting)]
        reports, elapsed_s = await at_once(self.stub, requests)
        after = [_cpu_s(node.pid) for node in (pair.verifying, pair.drafting)]
        blocks = [block for report in reports for block in report["blocks"]]
        there = [b for b in blocks if b["drafted_on"] == pair.drafting.node_id]
        # The last calls of the sessions are over when the next run begins.
        await trio.sleep(0.05)
        return Run(
            ids=tuple(tuple(report["ids"]) for report in reports),
            elapsed_s=elapsed_s,
            num_rounds=len(blocks),
            num_drafts=sum(block["num_drafts"] for block in there),
            verify_cpu_s=after[0] - before[0],
            draft_cpu_s=after[1] - before[1],
        )


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


__all__ = ["Run", "Turn", "measure_scaling", "scaling_row"]
