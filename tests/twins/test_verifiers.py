"""One body for both twins of the verifier, against numpy."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kakeya.compute import matmul_mlx
from kakeya.compute.device import ThreadDevice
from kakeya.compute.quantized import Quantized
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused
from kakeya.verifying import load as load_torch
from kakeya.verifying import load_mlx
from kakeya.verifying.exactness import GUARD_BOUNDS, Exactness, Measured
from kakeya.verifying.verifier import Bank, Kv, KvPlan, Rows
from tests.twins.reference import reference_logits
from tests.verifying.checkpoints import VOCAB_SIZE, full_plan, some_ids, write_checkpoint

TWINS: dict[str, ModuleType] = {"torch": load_torch, "mlx": load_mlx}
# What numpy's reference computes.
PLAIN = ("llama-tied", "llama-biases-llama3-rope", "qwen3-untied", "qwen3-tied-sliding")
# Where each twin is held to the other, and torch to transformers elsewhere.
FURTHER = ("qwen3-moe", "gemma3", "gemma4-shared", "gemma4-k-is-v")
WINDOW = KvPlan("window", sink=4, window=24, max_len=900)
VERIFYING = Path(load_torch.__file__).parent


@dataclass(frozen=True, slots=True)
class Twin:
    folder: Path
    verifier: Measured


def load(twin: str, folder: Path, *, dtype: str = "float32", **limits: Any) -> Measured:
    verifier: Measured = TWINS[twin].load_verifier(
        folder,
        dtype=dtype,
        limits=VerifyingLimits(num_threads=1, **limits),
        model_id="test",
        progress=lambda share: None,
    )
    return verifier


def fill(verifier: Measured, plan: KvPlan, ids: list[int], chunk_len: int = 64) -> Kv:
    kv = verifier.open(plan)
    for at in range(0, len(ids), chunk_len):
        verifier.prefill(kv, ids[at : at + chunk_len])
    return kv


def logits_of(rows: Rows) -> np.ndarray:
    assert rows.logits is not None
    return rows.logits


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in (*PLAIN, *FURTHER)}
    for name, folder in made.items():
        write_checkpoint(folder, name, seed=21)
    return made


@pytest.fixture(scope="module", params=TWINS)
def twin_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=PLAIN)
def twin(request: pytest.FixtureRequest, twin_name: str, folders: dict[str, Path]) -> Twin:
    folder = folders[request.param]
    return Twin(folder, load(twin_name, folder))


@pytest.mark.spec("V-12", "V-02", "V-14")
def test_logits_and_ids_are_numpy_s(twin: Twin):
    ids = some_ids(120)
    wanted = reference_logits(twin.folder, ids)
    kv = twin.verifier.open(full_plan())
    rows = [twin.verifier.forward(kv, ids[at : at + 40], want_logits=True) for at in (0, 40, 80)]
    found = np.concatenate([logits_of(each) for each in rows])
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()
    assert [i for each in rows for i in each.ids] == wanted.argmax(1).tolist()


@pytest.mark.spec("V-04", "V-14")
@pytest.mark.parametrize("plan", [full_plan(), WINDOW], ids=lambda plan: plan.mode)
def test_chunks_change_nothing(twin: Twin, plan: KvPlan):
    ids = some_ids(131)
    found = [
        twin.verifier.forward(fill(twin.verifier, plan, ids[:-1], n), ids[-1:], want_logits=True)
        for n in (1, 7, 64)
    ]
    assert len({rows.ids for rows in found}) == 1
    for rows in found[1:]:
        scale = np.abs(logits_of(rows)).max()
        assert np.abs(logits_of(rows) - logits_of(found[0])).max() <= 1e-4 * scale


@pytest.mark.spec("V-05", "V-08", "V-14")
@pytest.mark.parametrize("plan", [full_plan(), WINDOW], ids=lambda plan: plan.mode)
def test_blocks_with_forgotten_drafts_equal_steps(twin: Twin, plan: KvPlan):
    """To the bit where that was measured, else within what the margin guard bridges."""
    verifier, ids = twin.verifier, some_ids(100)
    stepped = fill(verifier, plan, ids[:60])
    steps = np.concatenate(
        [logits_of(verifier.forward(stepped, [each], want_logits=True)) for each in ids[60:]]
    )
    kv, at, bound = fill(verifier, plan, ids[:60]), 60, verifier.margin_bound
    for accepted in (1, 3, 2, 5, 1, 8, 4):
        wrong = some_ids(9 - accepted, seed=at)
        block = logits_of(verifier.forward(kv, ids[at : at + accepted] + wrong, want_logits=True))
        wanted = steps[at - 60 : at - 60 + accepted]
        assert np.abs(block[:accepted] - wanted).max() <= bound
        at += accepted
        verifier.trim(kv, at)
        assert kv.length == at


@pytest.mark.spec("V-05", "V-14")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_apart", [True, False])
def test_where_rows_are_not_kept_apart_no_dtype_counts_as_exact(
    twin_name: str,
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    is_apart: bool,
):
    loading = TWINS[twin_name]
    monkeypatch.setattr(loading, "keeps_rows_apart", lambda: is_apart)
    found = Exactness(is_exact=True, max_difference=0.0)
    monkeypatch.setattr(loading, "measure_exactness", lambda verifier: found)
    bound = load(twin_name, folders["qwen3-tied-sliding"], dtype=dtype).margin_bound
    assert bound == (0.0 if is_apart else GUARD_BOUNDS[dtype])


@pytest.mark.spec("V-05", "V-14")
@pytest.mark.parametrize("bits", [None, 2, 4, 8])
@pytest.mark.parametrize("shape", [(64, 64), (960, 576), (576, 1536)])
def test_a_row_of_an_mlx_product_depends_on_its_neighbours_only_where_that_was_measured(
    shape: tuple[int, int], bits: int | None
):
    if not matmul_mlx.keeps_rows_apart():
        pytest.skip("MLX's products depend on the rows beside them here: the margin guard is on")
    x, weight = (mx.random.normal(s, key=mx.random.key(2)) for s in ((17, shape[1]), shape))
    matrix: matmul_mlx.Matrix = matmul_mlx.DenseMatrix(weight, None)
    if bits is not None:
        how = Quantized(bits, group_size=64)
        packed = mx.quantize(weight, group_size=64, bits=bits)
        matrix = matmul_mlx.PackedMatrix(*packed, how, None)
    alone = mx.concatenate([matrix(row[None]) for row in x])
    for num_rows in range(2, 18):
        assert mx.array_equal(matrix(x[:num_rows]), alone[:num_rows]), num_rows


@pytest.mark.spec("D-31", "V-14")
@pytest.mark.parametrize("name", [*PLAIN, *FURTHER])
def test_a_prompt_that_is_scored_leaves_the_k_v_of_one_that_is_not(
    twin_name: str, name: str, folders: dict[str, Path]
):
    verifier, ids = load(twin_name, folders[name]), some_ids(50)
    silent, spoken = verifier.open(full_plan()), verifier.open(full_plan())
    verifier.prefill(silent, ids)
    rows = logits_of(verifier.read(spoken, ids))
    steps = [logits_of(verifier.forward(kv, [3], want_logits=True)) for kv in (silent, spoken)]
    assert np.array_equal(*steps)
    blocks = logits_of(verifier.forward(verifier.open(full_plan()), ids, want_logits=True))
    assert np.array_equal(rows, blocks)


@pytest.mark.spec("V-16", "V-14")
@pytest.mark.parametrize("name", [*PLAIN, *FURTHER])
def test_a_denoised_block_comes_out_alike_in_both(name: str, folders: dict[str, Path]):
    ids, found = some_ids(80), []
    for twin_name in TWINS:
        verifier = load(twin_name, folders[name])
        kv = fill(verifier, full_plan(), ids[:72])
        found.append(verifier.denoise(kv, ids[72:]))  # type: ignore[attr-defined]
        assert kv.length == 72
    scale = np.abs(found[0]).max()
    assert np.abs(found[0] - found[1]).max() <= 1e-4 * scale


@pytest.mark.spec("V-13", "V-14")
@pytest.mark.parametrize("name", [*PLAIN, *FURTHER])
def test_banks_stand_alike_in_both(name: str, folders: dict[str, Path]):
    """And aux comes out alike, from a prefill as from a pass."""
    ids, found = some_ids(80), []
    plan = KvPlan("restored", sink=4, window=24, max_len=300, prompt_len=70)
    for twin_name in TWINS:
        verifier = load(twin_name, folders[name])
        shapes = [verifier.geometry.kv_shape(i) for i in range(verifier.geometry.num_layers)]
        rng = np.random.default_rng(3)
        draws = [None if s is None else rng.normal(size=(2, 42, *s)) for s in shapes]
        kv = verifier.open(plan)
        aux = verifier.prefill(kv, ids[:64], aux_layers=(1, 0))
        verifier.prefill(kv, ids[64:69])
        banks = [
            Bank(i, "float32", *draw.astype(np.float32))
            for i, draw in enumerate(draws)
            if draw is not None
        ]
        verifier.restore(kv, banks)
        rows = verifier.forward(kv, ids[69:], want_logits=True, aux_layers=(0,))
        found.append((logits_of(rows), *aux, *rows.aux))
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(ours).max()


@pytest.mark.spec("V-03", "V-14")
def test_a_window_s_bytes_do_not_grow(twin: Twin):
    sizes = [
        twin.verifier.open(KvPlan("window", sink=4, window=24, max_len=n)).resident_bytes
        for n in (300, 1024)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.spec("V-14")
@pytest.mark.parametrize("model", FURTHER)
def test_both_twins_give_the_same_rows_and_aux(folders: dict[str, Path], model: str):
    """Also where layers read another one's slab, which MLX must see as one and the same."""
    ids = some_ids(70)
    found = []
    for name in TWINS:
        verifier: Any = load(name, folders[model])
        kv = fill(verifier, full_plan(), ids[:40])
        found.append(verifier.forward(kv, ids[40:], want_logits=True, aux_layers=(3, 0)))
        assert kv.resident_bytes == verifier.kv_bytes(full_plan())
    ours, theirs = found
    assert ours.ids == theirs.ids
    for a, b in zip((logits_of(ours), *ours.aux), (logits_of(theirs), *theirs.aux), strict=True):
        assert a.dtype == b.dtype == np.float32
        assert np.abs(a - b).max() <= 1e-4 * np.abs(a).max()


def test_bfloat16_aux_is_the_bits(twin_name: str, folders: dict[str, Path]):
    verifier = load(twin_name, folders["qwen3-untied"], dtype="bfloat16")
    rows = verifier.forward(verifier.open(full_plan()), some_ids(5), aux_layers=(1,))
    assert rows.aux[0].dtype == np.uint16


@pytest.mark.spec("V-09", "V-14")
@pytest.mark.parametrize(
    ("ids", "plan"),
    [
        ([], full_plan()),
        ([VOCAB_SIZE], full_plan()),
        ([-1], full_plan()),
        ([1] * 66, full_plan()),
        ([1] * 9, full_plan(8)),
        ([1], full_plan(0)),
        ([1], KvPlan("window", sink=0, window=0, max_len=9)),
    ],
)
def test_both_twins_refuse_the_same_in_the_same_words(
    folders: dict[str, Path], ids: list[int], plan: KvPlan
):
    said = []
    for name in TWINS:
        verifier = load(name, folders["llama-tied"])
        with pytest.raises(Refused) as refused:
            verifier.forward(verifier.open(plan), ids)
        said.append((refused.value.status, refused.value.why))
    assert said[0] == said[1]


@pytest.mark.spec("V-10", "V-14")
def test_k_v_beyond_the_limit_is_refused(twin_name: str, folders: dict[str, Path]):
    roomy: Any = load(twin_name, folders["llama-tied"])
    need = roomy.kv_bytes(full_plan(600))
    verifier = load(twin_name, folders["llama-tied"], max_kv_bytes=2 * need + 1)
    held = [verifier.open(full_plan(600)) for _ in range(2)]
    with pytest.raises(Refused, match="are held") as refused:
        verifier.open(full_plan(600))
    assert refused.value.status == "RESOURCE_EXHAUSTED"
    held.pop()
    verifier.open(full_plan(600))


@pytest.mark.spec("V-10")
def test_weights_beyond_the_limit_are_refused(twin_name: str, folders: dict[str, Path]):
    with pytest.raises(Refused, match="the limit is 200000") as refused:
        load(twin_name, folders["llama-tied"], max_weight_bytes=200_000)
    assert refused.value.status == "RESOURCE_EXHAUSTED"


async def test_a_verifier_lives_on_the_thread_of_its_device(
    twin_name: str, folders: dict[str, Path], nursery
):
    device = ThreadDevice(name="verifying", max_waiting=8)
    await nursery.start(device.serve)
    ids = some_ids(30)
    verifier = await device.run(load, twin_name, folders["qwen3-untied"])
    kv = await device.run(fill, verifier, full_plan(), ids[:-1])
    rows = await device.run(verifier.forward, kv, ids[-1:])
    assert rows.ids == (int(reference_logits(folders["qwen3-untied"], ids)[-1].argmax()),)
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("part", ["kv", "layers", "model", "weights"])
def test_twins_keep_the_same_names_in_the_same_order(part: str):
    """But for what one framework needs and the other does not."""
    only = {
        "mlx": {"attend", "_silu", "_one", "heads"},
        "torch": {"norm_of", "_to_numpy", "after_attention"},
    }
    found = []
    for name, own in only.items():
        tree = ast.parse((VERIFYING / f"{part}_{name}.py").read_text())
        names = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        renamed = [each.replace("Mlx", "").replace("Torch", "") for each in names]
        found.append([each for each in renamed if each not in own])
    assert found[0] == found[1]


def test_each_twin_imports_one_framework_only():
    """A host with MLX needs no torch, and the other way round."""
    for name, other in (("torch", "mlx"), ("mlx", "torch")):
        for path in VERIFYING.glob(f"*_{name}.py"):
            imported = {
                node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
            }
            assert not any(each and (each.startswith(other) or each.endswith(f"_{other}"))
                           for each in imported)  # fmt: skip
    assert importlib.import_module("kakeya.verifying.exactness")
