"""One rank of a probed ring: joins, sends to its neighbour, hears from it, says so in one line.

`python -m kakeya.ring.rank_mlx` in a process of its own, with MLX_RANK and MLX_HOSTFILE set.
Joining holds the interpreter and may wait for ever: whoever starts this also ends it.
"""

from __future__ import annotations

import sys

import mlx.core as mx

from kakeya.ring.probe import NUM_VALUES, said_line


def main() -> None:
    """Send a pattern each way around the ring and compare what arrives, bit by bit."""
    group = mx.distributed.init(strict=True, backend="ring")
    rank, size = group.rank(), group.size()
    right, left = (rank + 1) % size, (rank - 1) % size
    # Even ranks speak first, so that in a ring of two both are never waiting for the other.
    is_first = rank % 2 == 0
    is_exact = size >= 2 and all(
        [
            _exchange(group, to=right, of=left, speaks_first=is_first),
            _exchange(group, to=left, of=right, speaks_first=is_first),
        ]
    )
    sys.stdout.write(said_line(rank=rank, size=size, is_exact=is_exact))


def _exchange(group: mx.distributed.Group, *, to: int, of: int, speaks_first: bool) -> bool:
    """Send ours to one neighbour and hear the other's; whether it arrived as it was sent."""
    ours = _pattern(group.rank())
    if speaks_first:
        mx.eval(mx.distributed.send(ours, to, group=group, stream=mx.cpu))
    heard = mx.distributed.recv_like(ours, of, group=group, stream=mx.cpu)
    mx.eval(heard)
    if not speaks_first:
        mx.eval(mx.distributed.send(ours, to, group=group, stream=mx.cpu))
    return bool(mx.array_equal(heard, _pattern(of)).item())


def _pattern(rank: int) -> mx.array:
    """What a rank sends: its own, so that an echo of ours is not taken for it."""
    return mx.arange(NUM_VALUES, dtype=mx.uint32) * 7919 + rank


if __name__ == "__main__":
    main()
