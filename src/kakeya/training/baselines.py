"""What counting alone says of a text: uni-, bi- and trigram cross-entropy, to judge a model by."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

# Weights of the tri-, bi- and unigram and of a flat guess (Jelinek and Mercer's interpolation).
MIX = (0.45, 0.35, 0.19, 0.01)


def count_baselines(
    train: NDArray[np.uint16], held_out: NDArray[np.uint16], vocab_size: int
) -> dict[str, float]:
    """Nats a token of `held_out` by counts of `train`, each backed off to the shorter ones."""
    one, two, three = (_counts(train, n) for n in (1, 2, 3))
    total = len(train)
    sums = {"unigram": 0.0, "bigram": 0.0, "trigram": 0.0}
    ids = held_out.tolist()
    for before, last, each in zip(ids, ids[1:], ids[2:], strict=False):
        p1 = MIX[2] * one[(each,)] / total + MIX[3] / vocab_size
        p2 = _share(two[(last, each)], one[(last,)])
        p3 = _share(three[(before, last, each)], two[(before, last)])
        sums["unigram"] -= np.log(p1 / (MIX[2] + MIX[3]))
        sums["bigram"] -= np.log((MIX[1] * p2 + p1) / (1 - MIX[0]))
        sums["trigram"] -= np.log(MIX[0] * p3 + MIX[1] * p2 + p1)
    return {name: float(value / (len(ids) - 2)) for name, value in sums.items()}


def _counts(ids: NDArray[np.uint16], n: int) -> Counter[tuple[int, ...]]:
    parts = [ids[i : len(ids) - n + 1 + i].tolist() for i in range(n)]
    return Counter(zip(*parts, strict=True))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
