"""Blocks of several contexts in one pass are the blocks drafted one by one, in both twins."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kakeya.compute.matmul_torch import keeps_rows_apart
from kakeya.drafting.drafter import BlockAsk
from kakeya.errors import Refused
from kakeya.wire.tensor import WireArray
from tests.drafting.dflash_checkpoints import extended, some_aux, write_drafter
from tests.drafting.dflash_shapes import BLOCK_LEN, DRAFTERS, VOCAB_SIZE, WINDOW
from tests.twins.test_drafters import LOADERS, load, load_tiny

CONTEXT_LENS = (3, 2 * WINDOW + 1, 17, 64, 1, WINDOW)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in DRAFTERS}
    for name, folder in made.items():
        write_drafter(folder, name, seed=5)
    return made


def asks_of(drafter: Any, seed: int) -> list[BlockAsk]:
    """Blocks of different lengths over contexts of different lengths."""
    draw, num_aux = random.Random(seed), drafter.shape.num_aux
    return [
        BlockAsk(
            extended(drafter, None, 0, some_aux(length, num_aux, seed=seed + length)),
            length,
            draw.randrange(VOCAB_SIZE),
            draw.randint(1, BLOCK_LEN - 1),
        )
        for length in CONTEXT_LENS
    ]


def alone(drafter: Any, asks: list[BlockAsk]) -> list[Any]:
    return [drafter.draft(a.context, a.context_len, a.bonus_id, a.num_drafts) for a in asks]


@pytest.mark.spec("M-16", "M-13")
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "layers-not-said"])
@pytest.mark.parametrize("twin", LOADERS)
def test_together_they_are_what_they_are_alone(twin: str, name: str, folders: dict[str, Path]):
    drafter = load(twin, folders[name])
    for seed in (1, 2):
        asks = asks_of(drafter, seed)
        expected = alone(drafter, asks)
        assert len({each.ids for each in expected}) > 3
        assert drafter.draft_together(asks) == expected
        assert alone(drafter, asks) == expected, "no context was touched"
        assert drafter.draft_together(asks[::-1]) == expected[::-1]


@pytest.mark.spec("M-16")
@pytest.mark.parametrize("twin", LOADERS)
def test_the_tiny_drafter_s_too(twin: str):
    drafter = load_tiny(twin)
    asks = [
        BlockAsk(each.context, each.context_len, each.bonus_id, 1 + number)
        for number, each in enumerate(asks_of_size(drafter, seed=3))
    ]
    assert drafter.draft_together(asks) == alone(drafter, asks)


def asks_of_size(drafter: Any, seed: int) -> list[BlockAsk]:
    """As asks_of, with aux as wide as the drafter's verifier."""
    shape, made = drafter.shape, []
    for length in CONTEXT_LENS:
        rng = np.random.default_rng(seed + length)
        num_rows = min(length, shape.max_extend_len)
        rows = rng.normal(size=(shape.num_aux, num_rows, shape.hidden_size))
        aux = [WireArray("float32", each.astype(np.float32)) for each in rows]
        made.append(BlockAsk(drafter.extend(None, 0, aux), rows.shape[1], length, 3))
    return made


@pytest.mark.spec("M-16")
@pytest.mark.parametrize("name", ["full", "sliding-causal", "second"])
def test_to_the_bit_where_rows_are_kept_apart(name: str, folders: dict[str, Path]):
    """The K and V that the block itself left behind its context; nearly so elsewhere."""
    drafter, slabs = load("torch", folders[name]), []
    asks = asks_of(drafter, 7)
    for draft in (drafter.draft_together, lambda asks: alone(drafter, asks)):
        draft(asks)
        slabs.append([each.context.slab.clone() for each in asks])  # type: ignore[attr-defined]
    differences = [float((a - b).abs().max()) for a, b in zip(*slabs, strict=True)]
    assert max(differences) <= (0.0 if keeps_rows_apart() else 1e-4)


@pytest.mark.spec("M-16", "M-07")
@pytest.mark.parametrize("twin", LOADERS)
def test_one_out_of_bounds_is_refused_before_anything_is_computed(
    twin: str, folders: dict[str, Path]
):
    drafter = load(twin, folders["full"])
    good, *_, bad = asks_of(drafter, 1)
    bad = BlockAsk(bad.context, bad.context_len, VOCAB_SIZE, 3)
    with pytest.raises(Refused) as together:
        drafter.draft_together([good, bad])
    with pytest.raises(Refused) as by_itself:
        alone(drafter, [bad])
    assert str(together.value) == str(by_itself.value)
