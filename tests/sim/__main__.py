"""Simulated fleets on a mock clock.

just sim SEED              one seed of the fleet, and of whole nodes
just sim --seeds N         many; --level fleet (quick, no RPC bytes), nodes (all of it) or both
just sim --plan FILE       a plan that was kept
just sim --nodes N --hours H   a larger or longer run
just sim --crowd N         N nodes that start at once, and when they agree

A failure prints its seed, the plan cut down to what is needed, the first rule that was broken,
and the command that repeats it; the plan is kept.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.sim.crowd import bound_s, crowd
from tests.sim.determinism import simulate
from tests.sim.double import differs
from tests.sim.faults import draw_plan, kinds_of
from tests.sim.plan import Level, Plan, from_json, to_json
from tests.sim.run import Outcome, run_plan
from tests.sim.shrink import Run, shrunk

HERE = Path(__file__).parent
KEPT = HERE / "regressions"
# One seed in so many is run again in another process, with another hash seed.
DOUBLE_EVERY = 100
# Without a terminal to show progress on: a line every so many runs.
TELL_EVERY = 250


def main(argv: list[str], run: Run = run_plan) -> int:
    asked = parser().parse_args(argv)
    if asked.seeds < 1:
        parser().error(f"--seeds is {asked.seeds}, it must be at least 1")
    if asked.crowd:
        return agree(asked.crowd, asked.first)
    if asked.plan:
        return report(run(from_json(Path(asked.plan).read_text())), asked)
    levels: tuple[Level, ...] = ("fleet", "nodes") if asked.level == "both" else (asked.level,)
    first, count = (asked.first, asked.seeds) if asked.seed is None else (asked.seed, 1)
    return run_all(range(first, first + count), levels, asked, run)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="just sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("seed", nargs="?", type=int, help="run this one seed")
    made.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    made.add_argument("--first", type=int, default=0, help="the first of them")
    made.add_argument("--level", choices=("fleet", "nodes", "both"), default="both")
    made.add_argument("--nodes", type=int, default=0, help="nodes of a fleet (drawn: 3 to 8)")
    made.add_argument("--hours", type=float, default=0.0, help="virtual hours of storm a seed")
    made.add_argument(
        "--crowd", type=int, default=0, metavar="N", help="N nodes that start at once"
    )
    made.add_argument(
        "--at-least",
        type=int,
        default=0,
        metavar="N",
        help="each kind of fault must strike so often",
    )
    made.add_argument("--plan", default="", help="run a kept plan")
    made.add_argument("--trace", type=int, default=0, metavar="N", help="show the last N lines")
    made.add_argument("--keep", type=Path, default=KEPT, help="where failing plans are kept")
    return made


def agree(num_nodes: int, seed: int) -> int:
    """Let a crowd agree within its bound."""
    most_s = bound_s(num_nodes)
    agreed = simulate(partial(crowd, num_nodes, seed=seed, most_s=most_s), seed=seed)
    say(f"{num_nodes} nodes agree after {agreed.took_s:.0f} s; the bound is {agreed.bound_s:.0f} s")
    return 0


def plan_of(seed: int, level: Level, asked: argparse.Namespace) -> Plan:
    return draw_plan(seed, level=level, num_nodes=asked.nodes, storm_s=asked.hours * 3600)


def run_all(seeds: range, levels: tuple[Level, ...], asked: argparse.Namespace, run: Run) -> int:
    """Run each seed at each level; stops at the first that fails."""
    coverage: dict[Level, Counter[str]] = {level: Counter() for level in levels}
    started_s, before_s, virtual_s, num_runs = time.monotonic(), cpu_s(), 0.0, 0
    with progress() as bar:
        task = bar.add_task("", total=len(seeds) * len(levels), rate="")
        for seed in seeds:
            for level in levels:
                plan = plan_of(seed, level, asked)
                outcome = run(plan)
                is_doubled = seed % DOUBLE_EVERY == DOUBLE_EVERY - 1
                why = differs(plan, outcome) if is_doubled and outcome.held else ""
                if why or not outcome.held:
                    bar.stop()
                    tell_failure(plan, outcome, why, asked, run)
                    return 1
                coverage[level].update(outcome.coverage)
                num_runs += 1
                virtual_s += outcome.virtual_s * len(plan.names)
                rate = num_runs / max(time.monotonic() - started_s, 1e-9) * 60
                bar.update(task, advance=1, rate=f"{rate:.0f} a minute")
                if num_runs % TELL_EVERY == 0 and not sys.stderr.isatty():
                    say(f"{num_runs} runs, up to seed {seed}, {cpu_s() - before_s:.0f} CPU s")
    minutes = max(cpu_s() - before_s, 1e-9) / 60
    say(f"{num_runs} runs of {len(seeds)} seeds held, {virtual_s / 3600:.1f} node-hours; "
        f"{minutes:.1f} CPU minutes: {num_runs / minutes:.0f} runs and "
        f"{virtual_s / 3600 / minutes:.1f} node-hours a CPU minute")  # fmt: skip
    for level in levels:
        say(f"{level}: {told_coverage(level, coverage[level])}")
    rare = [
        f"{kind} ({level})"
        for level in levels
        for kind in kinds_of(level)
        if coverage[level][kind] < asked.at_least
    ]
    if rare:
        say(f"struck less than {asked.at_least} times: {', '.join(rare)}")
    return 1 if rare else 0


def cpu_s() -> float:
    """Seconds of processor time, those of second runs in processes of their own included."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def progress() -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def told_coverage(level: Level, counts: Counter[str]) -> str:
    """How often each kind of fault struck; those that never did are named."""
    missing = [kind for kind in kinds_of(level) if not counts[kind]]
    struck = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return struck + (f"; never: {', '.join(missing)}" if missing else "")


def report(outcome: Outcome, asked: argparse.Namespace) -> int:
    """Say what came of one given plan."""
    for line in outcome.tail[len(outcome.tail) - asked.trace :]:
        say(line)
    if outcome.held:
        say(f"held; trace {outcome.sha256[:16]}, {outcome.virtual_s:.0f} virtual seconds")
        return 0
    say(f"{outcome.rule}: {outcome.why}")
    return 1


def tell_failure(
    plan: Plan, outcome: Outcome, why: str, asked: argparse.Namespace, run: Run
) -> None:
    """One block with all that is needed to see it again."""
    rule = "D1" if why else outcome.rule
    say(f"\nseed {plan.seed} ({plan.level}) broke {rule}: {why or outcome.why}")
    say(f"commit {commit()}")
    small = plan if why else shrunk(plan, outcome, run=run)
    for line in outcome.tail[len(outcome.tail) - asked.trace :]:
        say(line)
    asked.keep.mkdir(exist_ok=True)
    kept = asked.keep / f"{plan.level}-{plan.seed}-{rule}.json"
    kept.write_text(to_json(small))
    again = "" if why else f" ({run(small).why})"
    say(f"{small.size} of {plan.size} faults and texts are needed{again}:\n{to_json(small)}")
    say(f"kept as {kept.name}; repeat it with: just sim --plan {told_path(kept)}")
    more = f" --nodes {asked.nodes}" * bool(asked.nodes) + f" --hours {asked.hours:g}" * bool(
        asked.hours
    )
    say(f"the whole run: just sim {plan.seed} --level {plan.level}{more}")


def told_path(path: Path) -> str:
    root = HERE.parents[1]
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
