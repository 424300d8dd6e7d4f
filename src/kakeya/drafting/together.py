"""Drafts that wait for the device at the same time go through it in one pass.

Every session's draft is queued as a job of its own.  Whichever begins first drafts for all that
wait for the same drafter; the others find theirs made, and leave the queue.  Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import outcome
import structlog
import trio

from kakeya.compute.device import Device
from kakeya.config.sessions import SessionLimits
from kakeya.drafting.drafter import BlockAsk, DflashDrafter
from kakeya.drafting.proposer import Draft
from kakeya.errors import Refused

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A draft that is asked for.  made: the draft, or why there is none, until it is taken."""

    drafter: DflashDrafter
    # Whoever pops it decides: the thread that drafts, or the sleeper that leaves.
    asks: list[BlockAsk]
    made: Any = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def claimed(self) -> BlockAsk | None:
        """What is to be drafted; None for all but the first who wants to know."""
        try:
            return self.asks.pop()
        except IndexError:
            return None

    def taken(self) -> Any:
        made, self.made = self.made, None
        return made


class Together:
    """The drafts of all sessions of a device.  num_passes, num_drafts: for tests and figures."""

    def __init__(self, device: Device, limits: SessionLimits) -> None:
        self.num_passes = 0
        self.num_drafts = 0
        self._device = device
        self._limits = limits
        self._waiting: list[_Waiting] = []  # changed on the loop only
        self._gathered_at_s = float("-inf")

    async def draft(self, drafter: DflashDrafter, ask: BlockAsk) -> Draft:
        """As `drafter.draft` does in a job; raises what that raises."""
        mine = _Waiting(drafter, [ask])
        is_first = not any(each.asks for each in self._waiting)
        self._waiting.append(mine)
        served: list[_Waiting] = []
        try:
            with mine.scope:
                await self._gather(is_first=is_first)
                served = await self._device.run(self._serve, mine)
            # No name for a failure, here or where it is made: it holds frames, and they would
            # hold it.
            return mine.taken().unwrap()  # type: ignore[no-any-return]
        finally:
            mine.asks.clear()
            self._waiting.remove(mine)
            for each in served:
                # Its job, which has nothing to do any more, leaves the queue.
                each.scope.cancel()

    async def _gather(self, *, is_first: bool) -> None:
        """Let others join.  All of them wait for the same moment, the first one's."""
        if not self._limits.gather_s:
            return
        if is_first:
            self._gathered_at_s = trio.current_time() + self._limits.gather_s
        await trio.sleep_until(self._gathered_at_s)

    def _serve(self, mine: _Waiting) -> list[_Waiting]:
        """On the thread: draft for all that wait, if nobody has drafted for this one."""
        taken, asks = self._taken(mine)
        if not taken:
            return []
        self.num_passes += 1
        self.num_drafts += len(taken)
        if len(taken) > 1:
            _draft_together(taken, asks)
        for each, ask in zip(taken, asks, strict=True):
            # What is wrong with one is no other's failure.
            each.made = each.made or outcome.capture(
                mine.drafter.draft, ask.context, ask.context_len, ask.bonus_id, ask.num_drafts
            )
        return taken[1:]

    def _taken(self, mine: _Waiting) -> tuple[list[_Waiting], list[BlockAsk]]:
        """Those that a pass is for, and what they ask: `mine`, and who came first."""
        first = mine.claimed()
        if first is None:
            return [], []
        taken, asks = [mine], [first]
        for each in list(self._waiting):
            if len(taken) == self._limits.max_together:
                break
            ask = each.claimed() if each.drafter is mine.drafter else None
            if ask is not None:
                taken.append(each)
                asks.append(ask)
        return taken, asks


def _draft_together(taken: Sequence[_Waiting], asks: Sequence[BlockAsk]) -> None:
    """One pass for all; where it fails nothing is made."""
    try:
        drafts = taken[0].drafter.draft_together(asks)
    except Refused:
        return
    except Exception:
        # Each is tried alone: one that fails is told so, the others have their draft.
        log.exception("drafts of several sessions failed together", num_drafts=len(asks))
        return
    for each, draft in zip(taken, drafts, strict=True):
        each.made = outcome.Value(draft)


__all__ = ["Together"]
