"""One body for both twins of the DFlash drafter, against numpy."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from kakeya.compute.device import ThreadDevice
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting import (
    dflash_load_mlx,
    dflash_load_torch,
    dflash_weights_mlx,
    dflash_weights_torch,
    ftheta_mlx,
    ftheta_torch,
)
from kakeya.drafting.dflash_config import VerifierShape
from kakeya.drafting.drafter import DflashDrafter, RestorePlan
from kakeya.embedded.drafters import resolve_drafter
from kakeya.embedded.models import resolve_model
from kakeya.errors import Refused
from kakeya.wire.tensor import WireArray
from tests.drafting.dflash_checkpoints import extended, some_aux, wired, write_drafter
from tests.drafting.dflash_shapes import (
    BLOCK_LEN,
    DRAFTERS,
    HIDDEN_SIZE,
    NUM_VERIFIER_LAYERS,
    VOCAB_SIZE,
    WINDOW,
)
from tests.twins.reference_drafter import ReferenceDrafter

LOADERS: dict[str, ModuleType] = {"torch": dflash_load_torch, "mlx": dflash_load_mlx}
WEIGHTS: dict[str, ModuleType] = {"torch": dflash_weights_torch, "mlx": dflash_weights_mlx}
RESTORERS: dict[str, ModuleType] = {"torch": ftheta_torch, "mlx": ftheta_mlx}
ARRAYS: dict[str, Any] = {"torch": torch.tensor, "mlx": mx.array}
DRAFTING = Path(dflash_load_torch.__file__).parent
SOURCES = DRAFTING.parent.parent
rng = np.random.default_rng(4)
EMBEDDING, HEAD = rng.normal(size=(2, VOCAB_SIZE, HIDDEN_SIZE)).astype(np.float32)
SHAPE = VerifierShape(VOCAB_SIZE, HIDDEN_SIZE, NUM_VERIFIER_LAYERS)


def load(twin: str, folder: Path, *, dtype: str = "float32", **limits: Any) -> Any:
    ends = WEIGHTS[twin].VerifierEnds(ARRAYS[twin](EMBEDDING), ARRAYS[twin](HEAD))
    return LOADERS[twin].load_drafter(
        folder,
        verifier=LOADERS[twin].VerifierPart(SHAPE, ends),
        dtype=dtype,
        limits=DrafterLimits(num_threads=1, **limits),
        model_id="test",
        progress=lambda share: None,
    )


def load_tiny(twin: str) -> Any:
    choice = resolve_drafter("tiny", own_verifier="tiny")
    folder = resolve_model("tiny", os.environ, lambda what, share: None)
    limits = DrafterLimits(num_threads=1)
    part = LOADERS[twin].read_verifier_part(folder, dtype="float32", limits=limits)
    return LOADERS[twin].load_drafter(
        choice.folder,
        verifier=part,
        dtype="float32",
        limits=limits,
        model_id="tiny",
        restorer=RESTORERS[twin].load_restorer(choice.folder),
        progress=lambda share: None,
    )


def values(array: WireArray) -> np.ndarray:
    assert array.dtype == "float32"
    return np.asarray(array.bits)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in DRAFTERS}
    for name, folder in made.items():
        write_drafter(folder, name, seed=5)
    return made


@dataclass(frozen=True, slots=True)
class Twin:
    drafter: Any
    reference: ReferenceDrafter


@pytest.fixture(scope="module", params=LOADERS)
def twin_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[name for name in DRAFTERS if name != "layers-not-said"])
def twin(request: pytest.FixtureRequest, twin_name: str, folders: dict[str, Path]) -> Twin:
    folder = folders[request.param]
    return Twin(load(twin_name, folder), ReferenceDrafter(folder, EMBEDDING, HEAD))


@pytest.mark.spec("M-13", "M-01", "M-05")
def test_drafts_are_numpy_s_over_many_blocks(twin: Twin):
    seed = 31
    draw, num_aux = random.Random(seed), twin.drafter.shape.num_aux
    aux, context, at = some_aux(90, num_aux, seed=seed), None, 0
    while at < len(aux):
        step = min(draw.randint(1, BLOCK_LEN), len(aux) - at)
        context = extended(twin.drafter, context, at, aux[at : at + step])
        at += step
        bonus, num_drafts = draw.randrange(VOCAB_SIZE), draw.randint(1, BLOCK_LEN - 1)
        drafted = list(twin.drafter.draft(context, at, bonus, num_drafts).ids)
        assert drafted == twin.reference.draft(aux[:at].numpy(), bonus, num_drafts), (seed, at)
    assert at > 4 * WINDOW


@pytest.mark.spec("M-13", "M-02", "M-03")
def test_neither_cuts_nor_what_lies_beyond_matter(twin: Twin):
    drafter = twin.drafter
    aux = some_aux(50, drafter.shape.num_aux, seed=3)
    whole = drafter.draft(extended(drafter, None, 0, aux), 50, 9, 7)
    context = extended(drafter, None, 0, aux, chunk_lens=[1, 7, 25, 2])
    assert drafter.draft(context, 50, 9, 7) == whole
    early = drafter.draft(extended(drafter, None, 0, aux[:23]), 23, 9, 7)
    assert drafter.draft(context, 23, 9, 7) == early
    again = extended(drafter, context, 23, aux[23:])
    assert again is context
    assert drafter.draft(again, 50, 9, 7) == whole


@pytest.mark.spec("M-13", "M-04")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_give_ids_all_the_same(twin: Twin, bad: float):
    aux = some_aux(20, twin.drafter.shape.num_aux, seed=8)
    aux[11] = bad
    ids = twin.drafter.draft(extended(twin.drafter, None, 0, aux), 20, 5, 15).ids
    assert len(ids) == 15
    assert all(type(each) is int and 0 <= each < VOCAB_SIZE for each in ids)


@pytest.mark.spec("M-13", "M-06")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_context_takes_the_bytes_that_were_said(
    twin_name: str, folders: dict[str, Path], dtype: str
):
    drafter, context = load(twin_name, folders["full"], dtype=dtype), None
    for at in range(0, 320, 32):
        context = extended(drafter, context, at, some_aux(32, 3, seed=at))
        assert context.resident_bytes == drafter.context_bytes(at + 32)


@pytest.mark.spec("M-13", "M-07")
def test_both_twins_refuse_the_same_in_the_same_words(folders: dict[str, Path]):
    said = []
    for name in LOADERS:
        drafter: DflashDrafter = load(name, folders["full"])
        context = extended(drafter, None, 0, some_aux(40, 3, seed=1))
        asked = [
            lambda d=drafter: d.extend(None, 0, wired(some_aux(4, 2, seed=1))),
            lambda d=drafter: d.extend(None, 0, wired(some_aux(65, 3, seed=1))),
            lambda d=drafter: d.extend(None, 509, wired(some_aux(4, 3, seed=1))),
            lambda d=drafter, c=context: d.draft(c, 40, VOCAB_SIZE, 3),
            lambda d=drafter, c=context: d.draft(c, 40, 5, BLOCK_LEN),
            lambda d=drafter, c=context: d.draft(c, 509, 5, 3),
            lambda n=name: load(n, folders["full"], max_weight_bytes=1000),
            lambda n=name: load(n, folders["full"], dtype="float8"),
        ]
        for ask in asked:
            with pytest.raises(Refused) as refused:
                ask()
            said.append((refused.value.status, refused.value.why))
    assert said[: len(said) // 2] == said[len(said) // 2 :]


@pytest.mark.spec("M-13")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_aux_comes_in_any_dtype_of_the_wire(twin_name: str, folders: dict[str, Path], dtype: str):
    drafter = load(twin_name, folders["full"])
    rough = some_aux(20, 3, seed=6).to(getattr(torch, dtype))
    found = [
        drafter.draft(drafter.extend(None, 0, wired(each)), 20, 5, 15)
        for each in (rough, rough.to(torch.float32))
    ]
    assert found[0] == found[1]
    reference = ReferenceDrafter(folders["full"], EMBEDDING, HEAD)
    assert list(found[0].ids) == reference.draft(rough.to(torch.float32).numpy(), 5, 15)


@pytest.mark.spec("M-14")
def test_the_tiny_drafter_and_its_banks_are_alike_in_both():
    ids = tuple(random.Random(2).choices(range(2048), k=150))
    plan = RestorePlan(ids, sink=4, window=16, omits_full_layers=False)
    drafts, banks = [], []
    for name in LOADERS:
        drafter = load_tiny(name)
        draw = np.random.default_rng(6)
        rows = draw.normal(size=(150, drafter.shape.num_aux, drafter.shape.hidden_size))
        context = None
        for at in range(0, 150, 50):
            part = rows[at : at + 50].astype(np.float32)
            aux = [WireArray("float32", part[:, i].copy()) for i in range(part.shape[1])]
            context = drafter.extend(context, at, aux)
        drafts.append([drafter.draft(context, 150, bonus, 7).ids for bonus in range(40)])
        found = [
            bank
            for known in ((None, 0), (context, 150))
            for bank in drafter.restore(plan, *known)
            if bank is not None
        ]
        banks.append(found)
    assert drafts[0] == drafts[1]
    assert len(set(drafts[0])) > 1
    assert [bank.layer for bank in banks[0]] == [bank.layer for bank in banks[1]] != []
    for ours, theirs in zip(*banks, strict=True):
        for a, b in ((ours.k, theirs.k), (ours.v, theirs.v)):
            assert a.bits.shape == b.bits.shape == (1, 130, *a.bits.shape[2:])
            assert np.abs(values(a) - values(b)).max() <= 1e-4 * np.abs(values(a)).max()


async def test_a_drafter_lives_on_the_thread_of_its_device(
    twin_name: str, folders: dict[str, Path], nursery
):
    device = ThreadDevice(name="drafting", max_waiting=8)
    await nursery.start(device.serve)
    aux = some_aux(30, 3, seed=5)
    drafter = await device.run(load, twin_name, folders["full"])
    context = await device.run(extended, drafter, None, 0, aux)
    drafted = await device.run(drafter.draft, context, 30, 4, 9)
    reference = ReferenceDrafter(folders["full"], EMBEDDING, HEAD)
    assert list(drafted.ids) == reference.draft(aux.numpy(), 4, 9)
    nursery.cancel_scope.cancel()


@pytest.mark.spec("M-13")
@pytest.mark.parametrize(
    "part", ["dflash", "dflash2", "dflash_context", "dflash_drafter", "dflash_load",
             "dflash_weights", "ftheta"]
)  # fmt: skip
def test_twins_keep_the_same_names_in_the_same_order(part: str):
    """But for what one framework needs and the other does not."""
    found = []
    for name in LOADERS:
        tree = ast.parse((DRAFTING / f"{part}_{name}.py").read_text())
        names = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        renamed = [each.replace("Mlx", "").replace("Torch", "") for each in names]
        found.append([each for each in renamed if each != "_evaluate"])
    assert found[0] == found[1] != []


@pytest.mark.spec("M-15")
@pytest.mark.parametrize(("name", "other"), [("torch", "mlx"), ("mlx", "torch")])
def test_a_drafter_is_loaded_where_the_other_framework_is_absent(name: str, other: str):
    code = f"""
import os, sys
sys.modules[{other!r}] = None  # importing it raises ImportError
from kakeya.config.settings import Settings
from kakeya.node.drafters import load_drafter_named
loaded = load_drafter_named(Settings(), "tiny", lambda what, share: None, backend={name!r})
assert loaded.card.restores
print(type(loaded.drafter).__name__)
"""
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"Dflash{name.title()}Drafter"
