from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakeya.compute.ropes import ROPE_TYPES, Llama3Scaling
from kakeya.compute.weight_files import WEIGHT_DTYPES
from kakeya.config.drafter import DrafterLimits
from kakeya.drafting.dflash_config import (
    ARCHITECTURES,
    LAYER_TYPES,
    Convolutions,
    DflashConfig,
    SelectorShape,
    VerifierShape,
    demand_fits,
    read_dflash_config,
)
from kakeya.errors import Refused
from tests.drafting.dflash_shapes import CONFIG, SECOND, SLIDING
from tests.spec_tables import table

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JUNK = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner)
)
FITTING = {"vocab_size": 151, "hidden_size": 48, "num_layers": 7}


def read(**changes: Any) -> DflashConfig:
    return read_dflash_config({**CONFIG, **changes})


def draft_fields(**changes: Any) -> dict[str, Any]:
    fields = {**CONFIG["dflash_config"], **changes}
    return {"dflash_config": {k: v for k, v in fields.items() if v is not ...}}


@pytest.mark.spec("M-08")
def test_what_is_supported_is_what_the_spec_says():
    rows = dict(table("dflash.md", "field", "supported"))
    assert tuple(rows["architectures"].split(", ")) == ARCHITECTURES
    assert tuple(rows["layer_types"].split(", ")) == LAYER_TYPES
    assert tuple(rows["rope_type"].split(", ")) == ROPE_TYPES
    assert tuple(rows["weight dtype"].split(", ")) == WEIGHT_DTYPES


def test_the_limits_are_those_of_the_spec():
    in_code = [(f"drafter.{each.name}", str(each.default)) for each in fields(DrafterLimits)]
    assert table("dflash.md", "key", "default") == in_code


@pytest.mark.spec("M-08")
@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        (draft_fields(mask_token_id=...), "INVALID_ARGUMENT", "mask_token_id is None"),
        (draft_fields(mask_token_id=151), "INVALID_ARGUMENT", "mask_token_id is 151"),
        (draft_fields(mask_token_id=-1), "INVALID_ARGUMENT", "mask_token_id is -1"),
        (draft_fields(mask_token_id="150"), "INVALID_ARGUMENT", "mask_token_id is '150'"),
        (draft_fields(target_layer_ids=[7]), "INVALID_ARGUMENT", "target_layer_ids is [7]"),
        (draft_fields(target_layer_ids=[-1]), "INVALID_ARGUMENT", "target_layer_ids is [-1]"),
        (draft_fields(target_layer_ids=[]), "INVALID_ARGUMENT", "target_layer_ids is []"),
        (draft_fields(target_layer_ids=3), "INVALID_ARGUMENT", "target_layer_ids is 3"),
        (draft_fields(target_layer_ids=[True]), "INVALID_ARGUMENT", "target_layer_ids is [True]"),
        ({"dflash_config": [1]}, "INVALID_ARGUMENT", "dflash_config is [1]"),
        ({"block_size": 1}, "INVALID_ARGUMENT", "block_size is 1"),
        ({"block_size": 129}, "INVALID_ARGUMENT", "block_size is 129, it must be a whole number"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "UNIMPLEMENTED", "architectures is ['Lla"),
        ({"hidden_act": "gelu"}, "UNIMPLEMENTED", "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "UNIMPLEMENTED", "quantization_config is"),
        ({"speculators_model_type": "dflash"}, "UNIMPLEMENTED", "speculators_model_type is"),
        ({"markov_rank": 256}, "UNIMPLEMENTED", "markov_rank is 256"),
        ({"attn_logit_softcapping": 50.0}, "UNIMPLEMENTED", "attn_logit_softcapping is 50.0"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "UNIMPLEMENTED", "rope_type is 'yarn'"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}},
            "UNIMPLEMENTED",
            "rope_parameters has sliding_attention",
        ),
        ({"layer_types": ["full_attention"]}, "INVALID_ARGUMENT", "each of the 3 layers"),
        ({"layer_types": ["linear_attention"] * 3}, "UNIMPLEMENTED", "'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 3}, "INVALID_ARGUMENT", "sliding_window is null"),
        ({**SLIDING, "use_sliding_window": False}, "INVALID_ARGUMENT", "use_sliding_window false"),
        ({**SLIDING, "sliding_window": 0}, "INVALID_ARGUMENT", "sliding_window is 0"),
        ({"is_causal": "no"}, "INVALID_ARGUMENT", "is_causal is 'no'"),
        ({"hidden_size": 0}, "INVALID_ARGUMENT", "hidden_size is 0"),
        ({"hidden_size": 1 << 60}, "INVALID_ARGUMENT", "hidden_size is 1152921504606846976"),
        ({"num_key_value_heads": 4}, "INVALID_ARGUMENT", "num_key_value_heads is 4"),
        ({"head_dim": 17}, "INVALID_ARGUMENT", "head_dim is 17"),
        ({"rms_norm_eps": float("nan")}, "INVALID_ARGUMENT", "rms_norm_eps is nan"),
        ({"max_position_embeddings": 0}, "INVALID_ARGUMENT", "max_position_embeddings is 0"),
        ({"draft_vocab_size": 152}, "INVALID_ARGUMENT", "draft_vocab_size is 152"),
        (
            {"draft_vocab_size": 99, "dflash_config": SECOND},
            "UNIMPLEMENTED",
            "draft_vocab_size is 99, a selector needs all of vocab_size 151",
        ),
        ({"dflash_config": {**SECOND, "conv_group_size": 7}}, "INVALID_ARGUMENT", "size is 7"),
        ({"dflash_config": {**SECOND, "selector_top_k": 152}}, "INVALID_ARGUMENT", "top_k is 152"),
        (
            {"architectures": ["DFlash2DraftModel"]},
            "INVALID_ARGUMENT",
            "conv_kernel_size is None",
        ),
    ],
)
def test_what_cannot_be_computed_or_contradicts_itself_is_refused_by_name(
    changes: dict[str, Any], status: str, why: str
):
    with pytest.raises(Refused) as refused:
        read(**changes)
    assert why in refused.value.why
    assert refused.value.status == status


@pytest.mark.spec("M-08")
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([*CONFIG, *SLIDING, "is_causal", "draft_vocab_size", "rope_parameters"]),
    st.sampled_from([*SECOND, "input_embedding_scale", "output_multiplier"]),
    JUNK,
    JUNK,
)
def test_whatever_stands_in_the_fields_is_read_or_refused(name, inner, junk, inner_junk):
    raw = {**CONFIG, **SLIDING, "dflash_config": {**SECOND, inner: inner_junk}, name: junk}
    with contextlib.suppress(Refused):
        assert isinstance(read_dflash_config(raw), DflashConfig)


def test_fields_are_read_from_dflash_config_first_and_then_beside_it():
    inside = read(**draft_fields(block_size=8, final_logit_softcapping=30.0))
    assert (inside.block_len, inside.logit_cap) == (8, 30.0)
    beside = {**CONFIG["dflash_config"], "block_size": 4, "input_embedding_scale": 2.0}
    flat = read(dflash_config=None, **beside)
    assert (flat.block_len, flat.mask_id, flat.embedding_scale) == (4, 150, 2.0)


@pytest.mark.parametrize(
    ("num_layers", "depth", "expected"),
    [(1, 7, (3,)), (2, 36, (1, 33)), (5, 36, (1, 9, 17, 25, 33)), (3, 9, (1, 4, 6))],
)
def test_layers_not_said_are_spread_as_in_the_reference(num_layers, depth, expected):
    found = read(
        num_hidden_layers=num_layers,
        layer_types=None,
        num_target_layers=depth,
        **draft_fields(target_layer_ids=...),
    )
    assert found.aux_layers == expected


@pytest.mark.spec("M-05")
def test_sliding_layers_are_causal_where_nothing_is_said():
    assert read(**SLIDING).causal_layers == (True, False, True)
    assert read(**SLIDING, is_causal=False).causal_layers == (False,) * 3
    assert read(is_causal=True).causal_layers == (True,) * 3


@pytest.mark.spec("M-05")
def test_a_window_holds_without_a_word_that_it_is_used():
    found = read(**{**SLIDING, "use_sliding_window": None})
    assert found.sliding_window == SLIDING["sliding_window"]
    assert read(sliding_window=9).sliding_window is None


def test_dflash_2_is_known_by_its_architecture_or_its_fields():
    named = read(architectures=["DFlash2DraftModel"], dflash_config=SECOND)
    assert named.convolutions == Convolutions(kernel_size=3, group_size=8)
    assert named.selector == SelectorShape(rank=20, num_candidates=9)
    assert read(dflash_config=SECOND) == named
    assert read().selector is None


def test_rope_scaling_is_read_as_the_verifier_reads_it():
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    found = read(rope_theta=500_000.0, rope_scaling=scaling).rope
    assert found.theta == 500_000.0
    assert found.llama3 == Llama3Scaling(32.0, 1.0, 4.0, 8192)


@pytest.mark.spec("M-10")
@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"hidden_size": 64}, "the verifier's hidden_size is 64, the drafter was made for 48"),
        ({"vocab_size": 152}, "the verifier's vocab_size is 152, the drafter was made for 151"),
        ({"num_layers": 8}, "the verifier's num_layers is 8, the drafter was made for 7"),
    ],
)
def test_a_verifier_it_was_not_made_for_is_refused(shape: dict[str, int], why: str):
    demand_fits(read(), VerifierShape(**FITTING))
    with pytest.raises(Refused, match=why) as refused:
        demand_fits(read(), VerifierShape(**{**FITTING, **shape}))
    assert refused.value.status == "FAILED_PRECONDITION"


@pytest.mark.spec("M-10")
def test_a_verifier_too_shallow_for_the_layers_read_is_refused():
    unsaid = read(num_target_layers=None)
    demand_fits(unsaid, VerifierShape(**{**FITTING, "num_layers": 6}))
    with pytest.raises(Refused, match="target_layer_ids has 5, the verifier has layers 0 to 4"):
        demand_fits(unsaid, VerifierShape(**{**FITTING, "num_layers": 5}))
