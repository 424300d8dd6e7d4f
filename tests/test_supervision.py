"""A supervised task is started again, later and later, until its budget is spent."""

from __future__ import annotations

import pytest
import trio

from kakeya.supervision import RestartPolicy, restart_delay_s, supervise

POLICY = RestartPolicy(max_restarts=3, period_s=60.0, backoff_s=0.5, max_backoff_s=1.5)


class Child:
    """Lives `lives_s[i]` seconds the i-th time, then fails; past the list it lives on."""

    def __init__(self, *lives_s: float) -> None:
        self.lives_s = list(lives_s)
        self.started_s: list[float] = []

    async def __call__(self) -> None:
        self.started_s.append(trio.current_time())
        if len(self.started_s) > len(self.lives_s):
            await trio.sleep_forever()
        await trio.sleep(self.lives_s[len(self.started_s) - 1])
        raise OSError(f"death {len(self.started_s)}")


@pytest.mark.spec("N-09")
async def test_it_is_started_again_with_a_back_off_that_doubles_up_to_a_cap(autojump_clock):
    child = Child(1.0, 1.0, 1.0)
    with trio.move_on_after(30):
        await supervise("gossip", child, POLICY)
    waits_s = [b - a - 1.0 for a, b in zip(child.started_s, child.started_s[1:], strict=False)]
    assert waits_s == pytest.approx([0.5, 1.0, 1.5])


@pytest.mark.spec("N-09")
async def test_past_its_budget_its_last_error_ends_the_node(autojump_clock):
    child = Child(0.0, 0.0, 0.0, 0.0, 0.0)
    with pytest.raises(OSError, match="death 4"):
        await supervise("gossip", child, POLICY)
    assert len(child.started_s) == 4


@pytest.mark.spec("N-09")
async def test_failures_older_than_the_period_are_forgiven(autojump_clock):
    child = Child(*[30.0] * 8)
    with trio.move_on_after(1000):
        await supervise("gossip", child, POLICY)
    assert len(child.started_s) == 9


async def test_a_child_that_merely_ends_is_started_again(autojump_clock):
    starts: list[float] = []

    async def short() -> None:
        starts.append(trio.current_time())
        await trio.lowlevel.checkpoint()

    with trio.move_on_after(2.2):
        await supervise("gossip", short, POLICY)
    assert len(starts) == 5


async def test_cancelling_ends_child_and_supervisor_alike(autojump_clock):
    child = Child()
    with trio.move_on_after(1) as scope:
        await supervise("gossip", child, POLICY)
    assert scope.cancelled_caught
    assert len(child.started_s) == 1


def test_the_delay_counts_only_recent_failures():
    assert restart_delay_s([0.0], 0.0, POLICY) == 0.5
    assert restart_delay_s([0.0, 100.0], 100.0, POLICY) == 0.5
    assert restart_delay_s([97.0, 98.0, 99.0, 100.0], 100.0, POLICY) is None
