"""The device's thread, at its end."""

from __future__ import annotations

import threading

import pytest
import trio

from kakeya.compute.device import ThreadDevice
from kakeya.errors import Refused


async def test_a_job_behind_the_end_is_refused_and_hangs_nobody():
    device = ThreadDevice(name="dflash", max_waiting=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(device.serve)
        assert await device.run(threading.get_ident) != threading.get_ident()
        nursery.cancel_scope.cancel()
    with trio.fail_after(2), pytest.raises(Refused, match="dflash has stopped") as caught:
        await device.run(lambda: None)
    assert caught.value.status == "UNAVAILABLE"


async def test_device_and_callers_cancelled_together_all_end():
    """In whatever order Trio wakes them: a job may be on its way to the thread just then."""
    for _ in range(50):
        device = ThreadDevice(name="dflash", max_waiting=4)
        with trio.fail_after(2):
            async with trio.open_nursery() as nursery:
                await nursery.start(device.serve)
                for _ in range(3):
                    nursery.start_soon(device.run, lambda: None)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
