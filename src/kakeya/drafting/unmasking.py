"""Which masked ids a denoising step keeps.  Pure.

The schedule of MaskGIT (Chang et al. 2022) as LLaDA (Nie et al. 2025, §2.4) uses it: the same
number of ids at every step, the most certain ones, and the others are masked again
("low-confidence remasking").
"""

from __future__ import annotations

from collections.abc import Sequence


def num_revealed(num_masks: int, num_steps: int) -> tuple[int, ...]:
    """How many ids each step reveals: all of `num_masks` in at most `num_steps` steps (≥ 1).

    Even shares, the larger ones first; no step reveals nothing, so there may be fewer steps.
    """
    steps = max(1, min(num_steps, num_masks))
    share, more = divmod(num_masks, steps)
    return tuple(share + (i < more) for i in range(steps))


def most_certain(chances: Sequence[float], masked: Sequence[int], count: int) -> list[int]:
    """The `count` of the rows `masked` with the highest chance; the earlier one on a tie."""
    return sorted(sorted(masked, key=lambda row: (-chances[row], row))[:count])


__all__ = ["most_certain", "num_revealed"]
