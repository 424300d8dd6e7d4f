"""The config.json of small DFlash drafters, as the published ones are worded."""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 151
HIDDEN_SIZE = 48
NUM_VERIFIER_LAYERS = 7
WINDOW = 12
BLOCK_LEN = 16

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "layer_types": ["full_attention"] * 3,
    "block_size": BLOCK_LEN,
    "num_target_layers": NUM_VERIFIER_LAYERS,
    "dflash_config": {"mask_token_id": 150, "target_layer_ids": [1, 3, 5]},
}
SLIDING: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
SECOND = {
    "mask_token_id": 150,
    "target_layer_ids": [1, 3, 5],
    "conv_kernel_size": 3,
    "conv_group_size": 8,
    "selector_rank": 20,
    "selector_top_k": 9,
}
# Name → what differs from CONFIG.
DRAFTERS: dict[str, dict[str, Any]] = {
    "full": {},
    "sliding-causal": SLIDING,
    "sliding-bidirectional": {**SLIDING, "is_causal": False},
    "all-causal-with-biases": {"is_causal": True, "attention_bias": True},
    "scaled-and-capped": {
        "dflash_config": {
            "mask_token_id": 0,
            "target_layer_ids": [6],
            "input_embedding_scale": 6.9,
            "output_multiplier": 0.7,
            "final_logit_softcapping": 3.0,
        },
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "layers-not-said": {"dflash_config": {"mask_token_id": 150}},
    "second": {"architectures": ["DFlash2DraftModel"], "dflash_config": SECOND},
    "second-sliding-bidirectional": {
        **SLIDING,
        "architectures": ["DFlash2DraftModel"],
        "is_causal": False,
        "dflash_config": {**SECOND, "output_multiplier": 1.3, "final_logit_softcapping": 9.0},
    },
}
