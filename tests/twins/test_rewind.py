"""A K/V that goes back to an earlier text's beginning is the one that would have read it itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kakeya.compute.device import InlineDevice
from kakeya.decoding import decode, engine_of
from kakeya.errors import Refused
from kakeya.verifying.verifier import Bank, KvPlan
from tests.twins.test_verifiers import TWINS, fill, load, logits_of
from tests.verifying.checkpoints import full_plan, some_ids, write_checkpoint

MODELS = ("llama-tied", "qwen3-tied-sliding", "gemma4-shared")
CHUNK_LEN = 64
# A layer that slides gives its slots again behind its window and one pass's rows.
SHORT, LONG = 70, 200


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in MODELS}
    for name, folder in made.items():
        write_checkpoint(folder, name, seed=21)
    return made


@pytest.fixture(scope="module", params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def llama(request: pytest.FixtureRequest, twin: str, folders: dict[str, Path]) -> Any:
    return load(twin, folders["llama-tied"], dtype=request.param)


def used(verifier: Any, plan: KvPlan, ids: list[int], *, steps: int = 9) -> Any:
    """A K/V with a text in it, and what decoding leaves behind: steps, and a block cut short."""
    kv = fill(verifier, plan, ids)
    for each in some_ids(steps, seed=5):
        verifier.forward(kv, [each])
    verifier.forward(kv, some_ids(5, seed=6))
    verifier.trim(kv, kv.length - 3)
    return kv


def demand_same(verifier: Any, found: Any, fresh: Any, behind: list[int]) -> None:
    """Slots, and what follows: a chunk and a block behind it, to the bit."""
    assert (found.length, found.plan.mode) == (fresh.length, fresh.plan.mode)
    assert found.forgettable_from == fresh.forgettable_from
    said = []
    for kv in (found, fresh):
        verifier.prefill(kv, behind[:20])
        said.append(logits_of(verifier.forward(kv, behind[20:26], want_logits=True)))
    assert np.array_equal(said[0], said[1])
    assert found.same_from(fresh, 0)
    assert fresh.same_from(found, 0)
    for kind in found.kinds:
        assert found.kinds[kind].num_read == fresh.kinds[kind].num_read


@pytest.mark.spec("V-17", "V-14")
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("max_len", [230, 1000])
def test_rewound_it_is_as_if_it_had_read_itself(llama: Any, keep: bool, max_len: int):
    ids, behind = some_ids(LONG), some_ids(26, seed=7)
    kv = used(llama, full_plan(300), ids)
    assert kv.rewindable_len == kv.length == LONG + 9 + 2
    found = llama.rewind(kv, full_plan(max_len), 128, keep=keep)
    assert (found is kv) == (not keep)
    assert found.plan == full_plan(max_len)
    demand_same(llama, found, fill(llama, full_plan(max_len), ids[:128]), behind)
    if keep:
        demand_same(llama, kv, used(llama, full_plan(300), ids), behind)


@pytest.mark.spec("V-17", "V-14")
@pytest.mark.parametrize("model", MODELS[1:])
def test_a_ring_that_has_not_gone_round_can_go_back(
    twin: str, folders: dict[str, Path], model: str
):
    """Also where layers read another one's slab."""
    verifier: Any = load(twin, folders[model])
    ids, behind = some_ids(SHORT), some_ids(26, seed=7)
    for keep in (True, False):
        kv = used(verifier, full_plan(900), ids, steps=2)
        found = verifier.rewind(kv, full_plan(1000), 64, keep=keep)
        demand_same(verifier, found, fill(verifier, full_plan(1000), ids[:64]), behind)
    kv = used(verifier, full_plan(900), some_ids(LONG))
    assert kv.rewindable_len == 0
    with pytest.raises(Refused, match="length is 64, it must be from 0 to 0"):
        verifier.rewind(kv, full_plan(900), 64, keep=False)
    assert kv.length == LONG + 9 + 2


@pytest.mark.spec("V-17", "V-14")
def test_a_window_goes_back_while_nothing_is_evicted(llama: Any):
    wide = [KvPlan("window", sink=4, window=80, max_len=n) for n in (300, 700)]
    ids, behind = some_ids(130), some_ids(26, seed=7)
    kv = used(llama, wide[0], ids)
    found = llama.rewind(kv, wide[1], 128, keep=False)
    demand_same(llama, found, fill(llama, wide[1], ids[:128]), behind)
    gone_round = used(llama, wide[0], some_ids(LONG))
    assert gone_round.rewindable_len == 4, "the sink's"
    for plan in (full_plan(), KvPlan("window", sink=5, window=80, max_len=300)):
        kv = used(llama, wide[0], ids)
        with pytest.raises(Refused, match=r"was read with sink and window \(4, 80\)") as refused:
            llama.rewind(kv, plan, 64, keep=False)
        assert refused.value.status == "INVALID_ARGUMENT"


@pytest.mark.spec("V-17", "V-13")
def test_no_bank_is_taken_for_what_was_read(llama: Any):
    plan = KvPlan("restored", sink=70, window=24, max_len=300, prompt_len=131)
    ids = some_ids(130)
    kv = fill(llama, plan, ids)
    rows = np.ones((37, *llama.geometry.kv_shape(0)), np.float32)
    llama.restore(kv, [Bank(i, "float32", rows, rows) for i in range(llama.geometry.num_layers)])
    assert kv.rewindable_len == 70
    found = llama.rewind(kv, full_plan(), 64, keep=False)
    demand_same(llama, found, fill(llama, full_plan(), ids[:64]), some_ids(26, seed=7))


@pytest.mark.spec("V-17", "V-10")
def test_a_rewound_k_v_counts_what_it_takes(twin: str, folders: dict[str, Path]):
    roomy: Any = load(twin, folders["llama-tied"])
    need = roomy.kv_bytes(full_plan(600))
    verifier: Any = load(twin, folders["llama-tied"], max_kv_bytes=2 * need - 1)
    ids = some_ids(100)
    kv = fill(verifier, full_plan(300), ids)
    with pytest.raises(Refused, match="are held"):
        verifier.rewind(kv, full_plan(1024), 64, keep=True)
    fill(verifier, full_plan(600), ids)
    kv = verifier.rewind(kv, full_plan(600), 64, keep=False)
    assert kv.resident_bytes == need
    with pytest.raises(Refused, match="are held"):
        verifier.rewind(kv, full_plan(600), 64, keep=True)


@pytest.mark.spec("D-36", "D-37", "V-14")
@pytest.mark.parametrize(
    ("plan", "cached_lens"),
    [
        (full_plan(700), [0, 128, 256]),
        (KvPlan("window", sink=4, window=500, max_len=700), [0, 128, 256]),
        (KvPlan("window", sink=4, window=24, max_len=700), [0, 0, 0]),
    ],
    ids=["full", "wide", "narrow"],
)
async def test_a_chat_has_the_same_ids_with_and_without_what_is_kept(
    llama: Any, plan: KvPlan, cached_lens: list[int], autojump_clock
):
    found = []
    for kept_prefixes in (4, 0):
        engine = engine_of(llama, InlineDevice(), kept_prefixes=kept_prefixes)
        text, cached = some_ids(150), []
        for turn in range(3):
            said: list[int] = []
            async for block in decode(engine, text, max_tokens=20, plan=plan):
                said.extend(block.ids)
            assert block.tally is not None
            cached.append(block.tally.cached_len)
            text = [*text, *said, *some_ids(115, seed=turn)]
        assert cached == (cached_lens if kept_prefixes else [0] * 3)
        found.append(text)
    assert found[0] == found[1]
