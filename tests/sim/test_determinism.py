"""The order of tasks comes from the seed."""

from __future__ import annotations

import random

import trio
from trio._core import _run

from tests.sim.determinism import seeded_schedule, simulate


async def order_of_tasks(num_tasks: int) -> list[int]:
    """The order in which tasks came through five rounds of equal deadlines and of checkpoints."""
    order: list[int] = []

    async def walk(n: int) -> None:
        for _ in range(5):
            with trio.move_on_after(1):
                await trio.sleep_forever()
            order.append(n)
            await trio.lowlevel.checkpoint()
            order.append(n)

    async with trio.open_nursery() as nursery:
        for n in range(num_tasks):
            nursery.start_soon(walk, n)
    return order


def test_trio_still_has_what_is_seeded():
    assert isinstance(_run._r, random.Random)
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING in (True, False)
    assert "_ALLOW_DETERMINISTIC_SCHEDULING" in _run.unrolled_run.__code__.co_names


def test_one_seed_is_one_order_and_another_seed_another():
    first = simulate(order_of_tasks, 20, seed=3)
    assert all(simulate(order_of_tasks, 20, seed=3) == first for _ in range(5))
    assert simulate(order_of_tasks, 20, seed=4) != first


def test_what_follows_is_as_random_as_before():
    state = _run._r.getstate()
    with seeded_schedule(1):
        assert _run._r.getstate() != state
    assert _run._r.getstate() == state
