"""What DFlash 2 adds to a drafter: convolutions along the block, and a choice of paths.

A row of the block is mixed with the rows just before it, by a fixed kernel per channel and a
dynamic one per group of channels that the row itself projects.  Then a path through the
likeliest ids of each row is chosen, each step scored by how well an id follows the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from kakeya.drafting.dflash_bounds import row_cuts
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_weights_mlx import ConvWeights, SelectorWeights


def prepare(
    config: DflashConfig, weights: ConvWeights, h: mx.array, lens: Sequence[int] = ()
) -> tuple[mx.array, mx.array]:
    """h: [..., T, hidden_size] convolved, and the dynamic kernel for `finish`.

    The kernel: [..., T, kernel_size, num_groups].  lens: as `block_hidden` has them.
    """
    shape = config.convolutions
    assert shape is not None
    kernels = split(weights.dynamic(h), 2, shape.kernel_size, -1)
    before, after = kernels[..., 0, :, :], kernels[..., 1, :, :]
    return _convolved(h, weights.base[0], before, lens), after


def finish(
    config: DflashConfig,
    weights: ConvWeights,
    h: mx.array,
    kernel: mx.array,
    lens: Sequence[int] = (),
) -> mx.array:
    """h: [..., T, hidden_size] convolved by the kernel that `prepare` gave."""
    return _convolved(h, weights.base[1], kernel, lens)


def _convolved(h: mx.array, base: mx.array, dynamic: mx.array, lens: Sequence[int]) -> mx.array:
    """Block by block: the first row of one has none before it."""
    if len(lens) <= 1:
        return _convolve(h, base, dynamic)
    return mx.concatenate([_convolve(h[cut], base, dynamic[cut]) for cut in row_cuts(lens)])


def _convolve(h: mx.array, base: mx.array, dynamic: mx.array) -> mx.array:
    """Row t: the sum over offset o of h[t - o] * (base[o] + dynamic[t, o] of its group).

    h: [..., T, hidden_size].  base: [kernel_size, hidden_size].
    dynamic: [..., T, kernel_size, num_groups].
    """
    num_groups, last = dynamic.shape[-1], base.shape[0] - 1
    grouped = split(h, num_groups, -1)
    kernel = split(base, num_groups, -1) + mx.expand_dims(dynamic, -1)
    out = grouped * kernel[..., 0, :, :]
    if last:
        nothing = mx.zeros((*grouped.shape[:-3], last, *grouped.shape[-2:]), dtype=h.dtype)
        padded = mx.concatenate([nothing, grouped], -3)
    for offset in range(1, base.shape[0]):
        earlier = padded[..., last - offset : last - offset + h.shape[-2], :, :]
        out = out + earlier * kernel[..., offset, :, :]
    return out.reshape(h.shape)


def split(x: mx.array, *sizes: int) -> mx.array:
    """x with its last axis cut into axes of these sizes; one may be -1."""
    return x.reshape((*x.shape[:-1], *sizes))


def select(
    config: DflashConfig,
    weights: SelectorWeights,
    hidden: mx.array,
    logits: mx.array,
    bonus_id: int,
) -> list[int]:
    """The ids of the path behind the bonus, each the best one behind the id before it.

    hidden: [T, hidden_size]; logits: [T, vocab_size].  Of candidates with equal scores: the
    lowest id.  All pairs of neighbouring candidates are scored at once; the walk costs nothing.
    """
    assert config.selector is not None
    num_candidates = config.selector.num_candidates
    candidates = mx.argpartition(-logits, num_candidates - 1, axis=-1)[:, :num_candidates]
    candidates = mx.sort(candidates, axis=-1)
    before = mx.concatenate(
        [mx.full((1, num_candidates), bonus_id, dtype=candidates.dtype), candidates[:-1]]
    )
    projected = weights.projection(hidden)[:, None]
    bonds = (weights.predecessors[before] * projected) @ weights.successors[candidates].swapaxes(
        -1, -2
    )
    scores = mx.take_along_axis(logits, candidates, axis=-1)[:, None] + bonds
    # [T, num_candidates]: the best candidate of a row behind each candidate of the row before.
    best: Any = mx.argmax(scores, axis=-1).tolist()
    ids_of: Any = candidates.tolist()
    path, at = [], 0
    for choices, ids in zip(best, ids_of, strict=True):
        at = choices[at]
        path.append(int(ids[at]))
    return path


__all__ = ["finish", "prepare", "select", "split"]
