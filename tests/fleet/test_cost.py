"""What merging costs the event loop; the figures are printed (`pytest -s`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pytest
import trio

from kakeya.fleet.frames import split
from kakeya.fleet.registry import Registry
from tests.fleet.cards import LIMITS, NOW, fleet_of
from tests.fleet.world import World


class Calls:
    """Counts Python and C calls of this thread: the same on a busy machine as on a quiet one."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: object, event: str, arg: object) -> None:
        self.count += event in ("call", "c_call")


def calls_per_card(act: Callable[[], object], num_cards: int) -> float:
    with Calls() as calls:
        act()
    return calls.count / num_cards


def cpu_ms(act: Callable[[], object]) -> float:
    start = time.thread_time()
    act()
    return 1000 * (time.thread_time() - start)


def merging(*, held: list[bytes], sent: list[bytes], now: float) -> Callable[[], object]:
    here = Registry("me", LIMITS)
    here.merge(held, NOW)
    view = b"".join(sent)
    return lambda: here.merge(split(view, max_cards=LIMITS.max_cards).frames, now)


@pytest.mark.spec("F-13")
def test_merging_a_thousand_known_cards_is_a_few_calls_a_card():
    before, after = fleet_of(1000), fleet_of(1000, stamp=NOW + 10)

    def cases() -> dict[str, Callable[[], object]]:
        return {
            "unchanged": merging(held=before, sent=before, now=NOW),
            "re-announced": merging(held=before, sent=after, now=NOW + 10),
            "new": merging(held=[], sent=before, now=NOW),
        }

    calls = {name: calls_per_card(act, 1000) for name, act in cases().items()}
    for name, act in cases().items():
        print(f"1,000 cards, {name}: {cpu_ms(act):.2f} ms, {calls[name]:.1f} calls a card")  # noqa: T201
    # A few microseconds a card; decoding one takes about ten times as many calls.
    assert calls["unchanged"] <= 8
    assert calls["re-announced"] <= 20
    assert calls["new"] > 3 * calls["re-announced"]


@pytest.mark.spec("F-13")
def test_the_bytes_of_an_unchanged_view_are_cached():
    here = Registry("me", LIMITS)
    here.merge(fleet_of(1000), NOW)
    assert here.view(NOW, is_near=True) is here.view(NOW + 1, is_near=True)
    here.merge(fleet_of(1, stamp=NOW + 1), NOW + 1)
    assert here.view(NOW + 1, is_near=True) == b"".join(
        fleet_of(1, stamp=NOW + 1) + fleet_of(1000)[1:]
    )


# A step of 20 ms makes some 100,000 calls, at 0.1 to 0.2 microseconds each.
MAX_CALLS_A_STEP = 80_000


class LongestStep(trio.abc.Instrument):
    """The most calls that one step of any task made."""

    def __init__(self, calls: Calls) -> None:
        self.most_calls = 0
        self.longest_task = ""
        self._calls = calls
        self._start = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._start = self._calls.count

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        num_calls = self._calls.count - self._start
        if num_calls > self.most_calls:
            self.most_calls, self.longest_task = num_calls, task.name


@pytest.mark.spec("F-13")
async def test_five_thousand_new_cards_are_merged_in_short_steps(autojump_clock):
    frames = fleet_of(5000)
    async with World.open(seed=1) as world:
        await world.start("attic")
        with Calls() as calls:
            watch = LongestStep(calls)
            trio.lowlevel.add_instrument(watch)
            for half in (frames[:2500], frames[2500:]):
                await world.push_raw("attic", b"".join(half))
            merging = watch.most_calls
            await trio.sleep(60)  # a few ticks with all of them
            trio.lowlevel.remove_instrument(watch)
        print(  # noqa: T201
            f"5,000 new cards: at most {merging} calls a step, "
            f"with ticks of {LIMITS.max_cards} nodes {watch.most_calls}"
        )
        assert len(world.fleet("attic").snapshot()) == LIMITS.max_cards
        assert watch.most_calls <= MAX_CALLS_A_STEP, watch.longest_task
