"""Two ranks on this host, and ranks that die or say nothing."""

from __future__ import annotations

import json
import os
import sys

import pytest
import trio

from kakeya.doctor.rings import ring_finding, told
from kakeya.ring.probe import Probe, announceable, has_ring, judged, probe_ring, said_line

needs_mlx = pytest.mark.skipif(not has_ring(), reason="no mlx here")
SILENT = (sys.executable, "-c", "import time; time.sleep(600)")
DEAD = (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")


def speaks(line: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"print({line!r}, end='')"


def through(rank: int, size: int = 2, *, is_exact: bool = True) -> str:
    return said_line(rank=rank, size=size, is_exact=is_exact)


async def probed(*commands: tuple[str, ...], limit_s: float = 20.0) -> Probe:
    hosts = [f"127.0.0.1:{port}" for port in range(1, 1 + len(commands))]
    return await probe_ring(hosts, environment=os.environ, limit_s=limit_s, commands=commands)


@pytest.mark.spec("N-15")
@needs_mlx
async def test_two_local_ranks_send_and_hear_each_other():
    assert (await ring_finding(os.environ)).state == "ok"


@pytest.mark.spec("N-15")
async def test_a_dead_rank_ends_the_probe_and_the_others_long_before_the_limit():
    with trio.fail_after(60):
        probe = await probed(SILENT, DEAD, limit_s=500)
    assert probe == Probe(2, False, "rank 1 died before it was through")
    found = told(probe)
    assert found.state == "failed"
    assert "ring_address stays empty" in found.do


@pytest.mark.spec("N-15")
async def test_a_silent_rank_is_killed_at_the_limit():
    probe = await probed(speaks(through(0)), SILENT, limit_s=0.5)
    assert not probe.works
    assert "silent for 0.5 s" in probe.why


@pytest.mark.spec("N-15")
async def test_the_loop_goes_on_while_ranks_hang():
    num_turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: probed(SILENT, SILENT, limit_s=0.5))
        while nursery.child_tasks:
            await trio.sleep(0.01)
            num_turns += 1
    assert num_turns > 10


@pytest.mark.spec("N-15")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([through(0), through(1)], ""),
        ([through(0), through(1, is_exact=False)], "rank 1 heard something else"),
        ([through(0), through(0)], "rank 1 heard something else"),
        ([through(0), "no json"], "rank 1 heard something else"),
        ([through(0), ""], "rank 1 died"),
        ([through(0), None], "rank 1 was silent"),
        ([through(0, size=1)], "a ring of one is none"),
    ],
)
def test_a_ring_works_only_when_every_rank_says_so(said, why):
    probe = judged([None if each is None else each.encode() for each in said], 3.0)
    assert probe.works == (not why)
    assert why in probe.why
    assert announceable(probe, "10.0.0.1:7000") == ("10.0.0.1:7000" if probe.works else "")


def test_a_rank_says_where_it_stood():
    assert json.loads(through(1)) == {"rank": 1, "size": 2, "is_exact": True}


async def test_ranks_are_told_their_place():
    listed = "import os, json; print(json.load(open(os.environ['MLX_HOSTFILE'])) and "
    tell = (
        f"{listed}json.dumps({{'rank': int(os.environ['MLX_RANK']), 'size': 2, 'is_exact': True}}))"
    )
    assert (await probed((sys.executable, "-c", tell), (sys.executable, "-c", tell))).works
