"""The command behind `just sim`."""

from __future__ import annotations

import trio

from tests.sim import __main__ as sim


def test_seeds_that_hold_end_with_status_0(capsys):
    assert sim.main(["--seeds", "2", "--first", "100"]) == 0
    assert "2 of 2 seeds" in capsys.readouterr().out


def test_a_broken_seed_says_how_to_repeat_it(capsys, monkeypatch):
    async def broken(seed: int) -> None:
        await trio.lowlevel.checkpoint()
        raise AssertionError("a card was lost")

    monkeypatch.setattr(sim, "storm", broken)
    assert sim.main(["7"]) == 1
    said = capsys.readouterr().out
    assert "seed 7 failed: AssertionError('a card was lost')" in said
    assert "just sim 7" in said
