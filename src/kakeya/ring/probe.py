"""Whether mlx.core.distributed forms a ring of two here and carries data both ways.

A ring never runs inside the node: joining it holds the interpreter for seconds, an absent peer is
waited for without end, a silent one is never noticed.  So each rank is a process of its own, which
is killed at a limit.  Knows nothing of cards; `announceable` says what may go on one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

# 256 KiB: more than a socket buffers, so that "sent" means that somebody read.
NUM_VALUES = 65_536
# Two local ranks take a second, most of it Python's start; MLX alone waits 31 s for a peer.
LIMIT_S = 30.0
# Longest line a rank is believed to say.
MAX_LINE_BYTES = 4096
RANK = (sys.executable, "-m", "kakeya.ring.rank_mlx")


@dataclass(frozen=True, slots=True)
class Probe:
    """size: ranks that took part.  works: every one of them sent and heard, exactly."""

    size: int
    works: bool
    why: str = ""


def has_ring() -> bool:
    """Whether there is an MLX to form rings with."""
    return find_spec("mlx") is not None


def announceable(probe: Probe, address: str) -> str:
    """What may stand in ring_address: an address that was probed and works, else ""."""
    return address if probe.works and probe.size >= 2 else ""


def said_line(*, rank: int, size: int, is_exact: bool) -> str:
    """What a rank prints once it is through."""
    return json.dumps({"rank": rank, "size": size, "is_exact": is_exact}) + "\n"


def judged(said: Sequence[bytes | None], limit_s: float) -> Probe:
    """What the ranks' output amounts to.

    b"": that rank died; None: it was still running when it was killed, at the limit or because
    another died.
    """
    dead = [rank for rank, line in enumerate(said) if line == b""]
    if dead:
        return Probe(len(said), False, f"rank {dead[0]} died before it was through")
    for rank, line in enumerate(said):
        if line is None:
            return Probe(len(said), False, f"rank {rank} was silent for {limit_s:g} s")
        try:
            told = json.loads(line[:MAX_LINE_BYTES])
        except ValueError:
            told = None
        if told != {"rank": rank, "size": len(said), "is_exact": True}:
            return Probe(len(said), False, f"rank {rank} heard something else than was sent")
    return Probe(len(said), len(said) >= 2, "" if len(said) >= 2 else "a ring of one is none")


async def probe_ring(
    hosts: Sequence[str],
    *,
    environment: Mapping[str, str],
    limit_s: float = LIMIT_S,
    commands: Sequence[Sequence[str]] = (),
) -> Probe:
    """Run one rank per HOST:PORT of this machine, all at once, and kill what is left at the limit.

    commands: other programs in the place of ranks, for tests.  Raises nothing for what a rank does.
    """
    said: list[bytes | None] = [None] * len(hosts)
    with TemporaryDirectory(prefix="kakeya-ring-") as folder:
        host_file = Path(folder) / "hosts.json"
        host_file.write_text(json.dumps([[host] for host in hosts]))

        async def run(rank: int) -> None:
            command = commands[rank] if commands else RANK
            added = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(host_file)}
            said[rank] = await _said(command, {**environment, **added})
            if not said[rank]:  # the others would wait for it without end
                nursery.cancel_scope.cancel()

        with trio.move_on_after(limit_s):
            async with trio.open_nursery() as nursery:
                for rank in range(len(hosts)):
                    nursery.start_soon(run, rank)
    return judged(said, limit_s)


async def _said(command: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """A process's output, b"" when it failed; cancelled, it is killed outright."""
    done = await trio.run_process(
        list(command),
        env=dict(environment),
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
        deliver_cancel=_kill,
    )
    return bytes(done.stdout) if done.returncode == 0 else b""


async def _kill(process: trio.Process) -> None:
    """SIGKILL: a rank that waits for its peer hears no other signal."""
    process.kill()
    await trio.lowlevel.checkpoint()


__all__ = ["Probe", "announceable", "has_ring", "judged", "probe_ring", "said_line"]
