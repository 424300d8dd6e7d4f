"""What DFlash 2 adds to a drafter: convolutions along the block, and a choice of paths.

A row of the block is mixed with the rows just before it, by a fixed kernel per channel and a
dynamic one per group of channels that the row itself projects.  Then a path through the
likeliest ids of each row is chosen, each step scored by how well an id follows the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kakeya.drafting.dflash_bounds import row_cuts
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.drafting.dflash_weights_torch import ConvWeights, SelectorWeights


def prepare(
    config: DflashConfig, weights: ConvWeights, h: Tensor, lens: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
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
    h: Tensor,
    kernel: Tensor,
    lens: Sequence[int] = (),
) -> Tensor:
    """h: [..., T, hidden_size] convolved by the kernel that `prepare` gave."""
    return _convolved(h, weights.base[1], kernel, lens)


def _convolved(h: Tensor, base: Tensor, dynamic: Tensor, lens: Sequence[int]) -> Tensor:
    """Block by block: the first row of one has none before it."""
    if len(lens) <= 1:
        return _convolve(h, base, dynamic)
    return torch.cat([_convolve(h[cut], base, dynamic[cut]) for cut in row_cuts(lens)])


def _convolve(h: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """Row t: the sum over offset o of h[t - o] * (base[o] + dynamic[t, o] of its group).

    h: [..., T, hidden_size].  base: [kernel_size, hidden_size].
    dynamic: [..., T, kernel_size, num_groups].
    """
    num_groups, last = dynamic.shape[-1], base.shape[0] - 1
    grouped = split(h, num_groups, -1)
    kernel = split(base, num_groups, -1) + dynamic.unsqueeze(-1)
    out = grouped * kernel[..., 0, :, :]
    if last:
        nothing = grouped.new_zeros(*grouped.shape[:-3], last, *grouped.shape[-2:])
        padded = torch.cat((nothing, grouped), -3)
    for offset in range(1, base.shape[0]):
        earlier = padded[..., last - offset : last - offset + h.shape[-2], :, :]
        out = torch.addcmul(out, earlier, kernel[..., offset, :, :])
    return out.reshape(h.shape)


def split(x: Tensor, *sizes: int) -> Tensor:
    """x with its last axis cut into axes of these sizes; one may be -1."""
    return x.reshape(*x.shape[:-1], *sizes)


def select(
    config: DflashConfig,
    weights: SelectorWeights,
    hidden: Tensor,
    logits: Tensor,
    bonus_id: int,
) -> list[int]:
    """The ids of the path behind the bonus, each the best one behind the id before it.

    hidden: [T, hidden_size]; logits: [T, vocab_size].  Of candidates with equal scores: the
    lowest id.  All pairs of neighbouring candidates are scored at once; the walk costs nothing.
    """
    assert config.selector is not None
    num_candidates = config.selector.num_candidates
    candidates = torch.topk(logits, num_candidates, dim=-1, sorted=False).indices
    candidates = candidates.sort(dim=-1).values
    before = torch.cat((candidates.new_full((1, num_candidates), bonus_id), candidates[:-1]))
    projected = weights.projection(hidden)[:, None]
    bonds = (weights.predecessors[before] * projected) @ weights.successors[candidates].mT
    scores = logits.gather(-1, candidates)[:, None] + bonds
    # [T, num_candidates]: the best candidate of a row behind each candidate of the row before.
    best: list[list[int]] = scores.argmax(-1).tolist()
    path, at = [], 0
    for choices, ids in zip(best, candidates.tolist(), strict=True):
        at = choices[at]
        path.append(int(ids[at]))
    return path


__all__ = ["finish", "prepare", "select", "split"]
