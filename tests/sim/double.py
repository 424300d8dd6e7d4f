"""Runs a plan once more in another process with another hash seed: the traces must be equal.

python -m tests.sim.double < PLAN prints the digest of the plan's trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.sim.plan import Plan, from_json, to_json
from tests.sim.run import Outcome, run_plan

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


def differs(plan: Plan, outcome: Outcome) -> str:
    """What is not the same in the second run, "" when nothing is."""
    environment = {**os.environ, "PYTHONHASHSEED": str(1 + plan.seed % 1000)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.double"],
        input=to_json(plan),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        return f"the second run failed: {done.stderr[-500:]}"
    second = done.stdout.split()[-1]
    if second != outcome.sha256:
        return f"two runs of one seed differ: {outcome.sha256[:16]} and {second[:16]}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(f"{run_plan(from_json(sys.stdin.read())).sha256}\n")
