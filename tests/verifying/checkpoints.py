"""Small checkpoints with random weights, written by transformers, and transformers' answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from kakeya.config.verifying import VerifyingLimits
from kakeya.verifying.load import load_verifier
from kakeya.verifying.model_torch import TorchVerifier
from kakeya.verifying.verifier import Kv, KvPlan

VOCAB_SIZE = 211
SLIDING_WINDOW = 12

_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "eos_token_id": 2,
}

_ALTERNATING = ["sliding_attention", "full_attention"] * 2

MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama-tied": (
        LlamaConfig,
        {"tie_word_embeddings": True, "num_attention_heads": 6, "hidden_size": 96},
    ),
    "llama-biases-llama3-rope": (
        LlamaConfig,
        {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 4,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "qwen3-untied": (Qwen3Config, {"head_dim": 32, "attention_bias": True}),
    "qwen3-tied-sliding": (
        Qwen3Config,
        {
            "head_dim": 32,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _ALTERNATING,
        },
    ),
    "qwen3-moe": (
        Qwen3MoeConfig,
        {
            "head_dim": 32,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gemma3": (
        Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 48,
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _ALTERNATING,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    # The last two layers read the K and V of layers 0 and 1, and have an MLP of twice the width.
    "gemma4-shared": (
        Gemma4TextConfig,
        {
            "head_dim": 32,
            "global_head_dim": 48,
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _ALTERNATING,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "final_logit_softcapping": 6.0,
        },
    ),
    "gemma4-k-is-v": (
        Gemma4TextConfig,
        {
            "head_dim": 32,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": SLIDING_WINDOW,
            "layer_types": _ALTERNATING,
            "hidden_size_per_layer_input": 0,
        },
    ),
}


def write_checkpoint(folder: Path, name: str, *, seed: int) -> PreTrainedModel:
    """Save a random model of this name; returns transformers' own, in float32."""
    kind, options = MODELS[name]
    torch.manual_seed(seed)
    config = kind(**{**_SHAPE, **options})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight_name, scalar in model.named_buffers():
            if weight_name.endswith("layer_scalar"):
                scalar.fill_(0.9)
        for weight in model.parameters():
            if weight.ndim == 1:  # norms and biases start as ones and zeros, which hide mistakes
                weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(folder)
    return model


def load(folder: Path, *, dtype: str = "float32", **limits: Any) -> TorchVerifier:
    return load_verifier(
        folder,
        dtype=dtype,
        limits=VerifyingLimits(num_threads=1, **limits),
        model_id="test",
        progress=lambda share: None,
    )


def full_plan(max_len: int = 600) -> KvPlan:
    return KvPlan("full", sink=0, window=0, max_len=max_len)


def filled(verifier: TorchVerifier, plan: KvPlan, ids: list[int], chunk_len: int = 64) -> Kv:
    """A K/V with `ids` prefilled in chunks."""
    kv = verifier.open(plan)
    for at in range(0, len(ids), chunk_len):
        verifier.prefill(kv, ids[at : at + chunk_len])
    return kv


def logits_by_steps(verifier: TorchVerifier, kv: Kv, ids: list[int]) -> NDArray[np.float32]:
    """One pass a token: [len(ids), vocab_size]."""
    rows = [verifier.forward(kv, [each], want_logits=True).logits for each in ids]
    return np.concatenate([row for row in rows if row is not None])


def equal_as_measured(
    verifier: TorchVerifier, rows: NDArray[np.float32], steps: NDArray[np.float32]
) -> bool:
    """Equal to the bit where that was measured at load, else well within the guard's bound."""
    if verifier.margin_bound == 0.0:
        return np.array_equal(rows, steps)
    return rows.shape == steps.shape and bool(
        np.abs(rows - steps).max() <= verifier.margin_bound / 2
    )


def reference_logits(
    model: PreTrainedModel, ids: list[int], hidden: dict[str, NDArray[np.bool_]] | None = None
) -> NDArray[np.float32]:
    """transformers' logits over all positions; `hidden` replaces its masks, by layer type."""
    masks: Any = None
    if hidden is not None:
        masks = {
            kind: torch.zeros(1, 1, *h.shape).masked_fill(torch.from_numpy(h), -torch.inf)
            for kind, h in hidden.items()
        }
        if isinstance(model.config, (LlamaConfig, Qwen3MoeConfig)):
            masks = masks["full_attention"]
    with torch.no_grad():
        found = model(torch.tensor([ids]), attention_mask=masks, use_cache=False).logits[0]
    return np.asarray(found.numpy())


def some_ids(count: int, *, seed: int = 3) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, VOCAB_SIZE, count)]
