"""What is said to be needed is what is taken."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kakeya.compute.threads import prepare_environment

prepare_environment(os.environ)

from kakeya.config.settings import Settings  # noqa: E402
from kakeya.embedded.models import TINY_FOLDER  # noqa: E402
from kakeya.errors import Refused  # noqa: E402
from kakeya.node.backend import Host, this_host  # noqa: E402
from kakeya.node.need import demand_memory, demand_rows, proposer_bytes, verifier_need  # noqa: E402
from kakeya.node.served import ServedModel, load_served  # noqa: E402
from kakeya.verifying.footprint import kv_bytes  # noqa: E402
from kakeya.verifying.verifier import KvPlan  # noqa: E402
from tests.verifying.checkpoints import load, write_checkpoint  # noqa: E402

TINY = TINY_FOLDER / "verifier"
HOST = Host(frozenset({"torch"}), is_apple_silicon=False)
PLANS = (KvPlan("full", 0, 0, 1000), KvPlan("window", 4, 16, 1000), KvPlan("window", 0, 100, 64))


def loaded(settings: Settings) -> ServedModel:
    return load_served(settings, lambda words, share: None)


@pytest.mark.spec("N-23")
@pytest.mark.parametrize("name", ["llama-tied", "qwen3-tied-sliding", "gemma4-shared"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_kv_are_those_that_are_opened(name: str, dtype: str, tmp_path: Path):
    write_checkpoint(tmp_path, name, seed=1)
    verifier = load(tmp_path, dtype=dtype)
    limits = Settings().verifying
    for plan in PLANS:
        assert kv_bytes(verifier.config, plan, dtype, limits) == verifier.kv_bytes(plan)


@pytest.mark.spec("N-23", "V-10")
def test_the_bytes_of_the_weights_are_those_that_are_demanded(tmp_path: Path):
    write_checkpoint(tmp_path, "llama-tied", seed=1)
    needed = verifier_need(tmp_path, Settings(), HOST).weight_bytes
    load(tmp_path, max_weight_bytes=needed)
    with pytest.raises(Refused, match=f"take {needed} bytes"):
        load(tmp_path, max_weight_bytes=needed - 1)
    tight = replace(Settings().verifying, max_weight_bytes=needed - 1)
    with pytest.raises(Refused, match=f"take {needed} bytes"):
        verifier_need(tmp_path, Settings(verifying=tight), HOST)


@pytest.mark.spec("N-21")
@pytest.mark.parametrize(
    ("backend", "asked", "dtype"),
    [("torch", "auto", "float32"), ("mlx", "auto", "bfloat16"), ("mlx", "float32", "float32")],
)
def test_an_automatic_dtype_is_the_backends(backend, asked, dtype):
    host = Host(frozenset({backend}), is_apple_silicon=False)
    assert verifier_need(TINY, Settings(dtype=asked), host).dtype == dtype


@pytest.mark.spec("N-23")
@pytest.mark.parametrize(("kv", "what"), [("full", "K/V of 2048 positions"), ("window", "probes")])
def test_the_least_memory_limit_starts_and_holds_a_whole_context(kv, what):
    settings = Settings(verifier="tiny", kv=kv, window=16, backend="torch")
    need = verifier_need(TINY, settings, this_host())
    least = need.weight_bytes + max(need.context_bytes, need.probe_bytes)
    with pytest.raises(Refused, match=f"memory_limit is .*{least - 1} bytes.*{what}") as refused:
        loaded(replace(settings, memory_limit=least - 1))
    assert refused.value.status == "RESOURCE_EXHAUSTED"
    verifier = loaded(replace(settings, memory_limit=least)).verifier
    length = need.checkpoint.config.max_context_len
    held = verifier.open(KvPlan("full" if kv == "full" else "window", 4, 16, length))
    assert held.length == 0
    with pytest.raises(Refused, match="are held"):
        verifier.open(KvPlan("full", 0, 0, length))


@pytest.mark.spec("N-23")
def test_drafters_count_and_each_size_is_named():
    settings = Settings(verifier="tiny", proposer=("ngram", "tiny", "tiny-dlm"), memory_limit=1000)
    drafting = [proposer_bytes(settings, name, os.environ) for name in settings.proposer]
    assert drafting[0] == 0
    assert min(drafting[1:]) > 500_000
    need = verifier_need(TINY, settings, HOST)
    with pytest.raises(Refused) as refused:
        demand_memory(settings, need, sum(drafting))
    for words in ("memory_limit is 1.0 kB (1000 bytes)", "weights in float32", "drafters", "K/V"):
        assert words in refused.value.why
    with pytest.raises(Refused, match="needed are [^:]*: drafters"):
        demand_memory(settings, None, sum(drafting))
    demand_memory(replace(settings, memory_limit=0), need, sum(drafting))


@pytest.mark.spec("V-20")
def test_more_rows_than_ids_are_padding_and_more_ids_than_rows_are_refused():
    demand_rows(2000, 2048)
    demand_rows(2048, 2048)
    with pytest.raises(Refused, match="has 2049 ids, vocab_size is 2048"):
        demand_rows(2049, 2048)
