"""Sessions under random requests, right and wrong, against a model of three integers."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kakeya.config.sessions import SessionLimits
from kakeya.drafting import session_states as s
from kakeya.errors import Refused
from tests.drafting.numpy_drafter import SHAPE, NumpyDrafter
from tests.drafting.session_host import PEER, Host, hosting
from tests.drafting.session_requests import aux, draft, restore

MAX_LEN = SHAPE.max_context_len
LENGTHS = st.integers(0, 30)
OFFSETS = st.sampled_from([0, 0, 0, 0, -2, -1, 1, 7])


class Loop:
    """A Trio loop in a thread of its own, for a machine that is driven step by step."""

    def __init__(self) -> None:
        self.host: Host | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._over = trio.Event()
        # Waiting for a gap to be filled is not what is looked at here.
        async with hosting(limits=SessionLimits(early_s=0.0005)) as host:
            self.host = host
            self._ready.set()
            await self._over.wait()

    def run(self, fn, *args):
        return trio.from_thread.run(fn, *args, trio_token=self._token)

    def end(self) -> None:
        trio.from_thread.run_sync(self._over.set, trio_token=self._token)
        self._thread.join(10)


class SessionModel(RuleBasedStateMachine):
    """prompt_len 0: no session; context_len 0: Restored; outstanding 0: Seeded; else Drafting.

    A prompt of n tokens is always the same, and so is the row of a position: what is drafted
    follows from context_len alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.prompt_len = self.context_len = self.outstanding = 0
        self.bonus_id = 0

    @initialize()
    def begin(self) -> None:
        self.restores(6)

    def teardown(self) -> None:
        self.loop.end()

    # ---- what is asked

    @rule(length=LENGTHS, is_bad=st.sampled_from([False, False, False, True]))
    def restores(self, length: int, is_bad: bool = False) -> None:
        ids = [*range(length), *([SHAPE.vocab_size] if is_bad else [])]
        status = "OK" if length and not is_bad else "INVALID_ARGUMENT"
        self.told(status, restore(ids))
        if status == "OK":
            is_equal = length == self.prompt_len and not self.outstanding
            self.context_len = self.context_len if is_equal else 0
            self.prompt_len, self.outstanding = length, 0

    @rule(rows=LENGTHS, first=st.sampled_from([0, 0, 0, 1]), gap=st.sampled_from([0, 0, 0, 1]))
    def seeds(self, rows: int, first: int, gap: int) -> None:
        request = s.SeedContext(aux(rows, first=0), first, first + rows + gap)
        if not self.prompt_len:
            status = "NOT_FOUND"
        elif self.context_len:
            status = "FAILED_PRECONDITION"
        else:
            fits = 1 <= rows <= self.prompt_len and not first and not gap
            status = "OK" if fits else "INVALID_ARGUMENT"
        if self.told(status, request) is not None:
            self.context_len = rows

    @rule(offset=OFFSETS, rows=LENGTHS, gap=st.sampled_from([0, 0, 0, 0, 1]))
    def extends(self, offset: int, rows: int, gap: int) -> None:
        first = max(0, self.context_len + offset)
        request = s.ExtendContext(aux(rows, first=first), first, first + rows + gap)
        if not self.prompt_len:
            status = "NOT_FOUND"
        elif not self.context_len:
            status = "FAILED_PRECONDITION"
        elif not rows:
            status = "INVALID_ARGUMENT"
        elif gap:
            status = "FAILED_PRECONDITION"
        elif first + rows <= self.context_len:
            status = "OK"
        elif first != self.context_len:
            status = "FAILED_PRECONDITION"
        else:
            status = "OK" if first + rows <= MAX_LEN else "INVALID_ARGUMENT"
        reply = self.told(status, request)
        if reply is not None:
            self.context_len = max(self.context_len, first + rows)
            assert reply == self.context_len

    @rule(
        offset=OFFSETS,
        num_drafts=st.sampled_from([1, 3, 3, 16, 0, 17]),
        bonus_id=st.sampled_from([7, 7, 8, 251]),
    )
    def drafts(self, offset: int, num_drafts: int, bonus_id: int) -> None:
        context_len = max(0, self.context_len + offset)
        if not self.prompt_len:
            status = "NOT_FOUND"
        elif not self.context_len:
            status = "FAILED_PRECONDITION"
        elif not 1 <= num_drafts <= SHAPE.max_num_drafts or bonus_id >= SHAPE.vocab_size:
            status = "INVALID_ARGUMENT"
        elif context_len != self.context_len:
            status = "FAILED_PRECONDITION"
        else:
            status = "OK" if context_len + 1 + num_drafts <= MAX_LEN else "INVALID_ARGUMENT"
        made = self.told(status, draft(context_len, bonus_id=bonus_id, num_drafts=num_drafts))
        if made is not None:
            assert made.ids == drafted(context_len, bonus_id, num_drafts)
            self.outstanding = num_drafts

    @precondition(lambda self: self.prompt_len)
    @rule(times=st.sampled_from([1, 1, 2]))
    def closes(self, times: int) -> None:
        for _ in range(times):
            self.told("OK" if self.prompt_len else "NOT_FOUND", s.CloseSession())
            self.prompt_len = self.context_len = self.outstanding = 0

    # ---- what holds

    @invariant()
    def the_registry_agrees(self) -> None:
        assert self.loop.host is not None
        counts = self.loop.host.sessions.counts()
        length = max(self.prompt_len, self.context_len)
        assert counts.num_sessions == bool(self.prompt_len)
        assert counts.num_bytes == self.loop.host.drafter.context_bytes(length)

    def told(self, status: str, request: s.Request):
        """The reply to `request`; None for the refusal that was expected."""
        found, reply = self.loop.run(partial(ask, self.loop.host, request))
        assert found == status
        return reply


async def ask(host: Host, request: s.Request):
    """As the service does it: Restore opens what is not there."""
    try:
        if isinstance(request, s.Restore) and host.sessions.find("s", PEER) is None:
            host.open()
        session = host.sessions.get("s", PEER)
        return "OK", await session.desk.ask(request)
    except Refused as refused:
        await trio.testing.wait_all_tasks_blocked()
        return refused.status, None


def drafted(context_len: int, bonus_id: int, num_drafts: int) -> tuple[int, ...]:
    """What a drafter of its own drafts behind the rows of positions 0 … context_len - 1."""
    drafter = NumpyDrafter()
    context = None
    for first in range(0, context_len, SHAPE.max_extend_len):
        num_rows = min(SHAPE.max_extend_len, context_len - first)
        context = drafter.extend(context, first, aux(num_rows, first=first).rows(0, num_rows))
    assert np.isfinite(context.rows[:context_len]).all()
    return drafter.draft(context, context_len, bonus_id, num_drafts).ids


@pytest.mark.spec("S-01", "S-02", "S-07", "S-12")
def test_sessions_do_what_three_integers_say():
    run_state_machine_as_test(
        SessionModel,
        settings=settings(max_examples=60, stateful_step_count=30, deadline=None),
    )
