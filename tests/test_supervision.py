import itertools

import pytest
import trio

from kakeya.supervision import RestartPolicy, restart_delay_s, supervise

POLICY = RestartPolicy(max_restarts=3, period_s=100.0, backoff_s=1.0, max_backoff_s=3.0)


@pytest.mark.spec("N-09")
async def test_a_failing_child_is_started_again_with_back_off_until_its_budget_is_spent(
    autojump_clock,
):
    starts_s = []

    async def child():
        starts_s.append(trio.current_time())
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        await supervise("child", child, POLICY)
    waits_s = [b - a for a, b in itertools.pairwise(starts_s)]
    assert waits_s == [1.0, 2.0, 3.0]


@pytest.mark.spec("N-09")
async def test_a_child_that_ends_is_started_again(autojump_clock):
    num_starts = 0

    async def child():
        nonlocal num_starts
        num_starts += 1
        await trio.sleep(10)

    with trio.move_on_after(35):
        await supervise("child", child, POLICY)
    assert num_starts == 4


def test_old_failures_are_forgiven():
    old = [0.0, 1.0, 2.0]
    assert restart_delay_s([*old, 200.0], 200.0, POLICY) == 1.0
    assert restart_delay_s([*old, 3.0], 3.0, POLICY) is None


async def test_cancelling_ends_child_and_supervisor(autojump_clock):
    with trio.move_on_after(1) as scope:
        await supervise("child", trio.sleep_forever, POLICY)
    assert scope.cancelled_caught
