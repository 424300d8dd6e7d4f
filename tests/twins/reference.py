"""A Llama or Qwen3 decoder in numpy, in float64, without any K/V: what both twins must say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float64]


def reference_logits(folder: Path, ids: Sequence[int]) -> Array:
    """[len(ids), vocab_size]: what the checkpoint says behind each of `ids`."""
    config = json.loads((folder / "config.json").read_text())
    weights = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    x = weights["model.embed_tokens.weight"][np.asarray(ids)]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        layer = {k.removeprefix(at): v for k, v in weights.items() if k.startswith(at)}
        x = x + attention(config, layer, rms_norm(x, layer["input_layernorm.weight"], config), i)
        x = x + mlp(layer, rms_norm(x, layer["post_attention_layernorm.weight"], config))
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return rms_norm(x, weights["model.norm.weight"], config) @ head.T


def attention(config: dict[str, Any], layer: dict[str, Array], x: Array, index: int) -> Array:
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    q, k, v = (
        linear(layer, f"self_attn.{name}_proj", x).reshape(len(x), -1, head_dim) for name in "qkv"
    )
    if "self_attn.q_norm.weight" in layer:
        q = rms_norm(q, layer["self_attn.q_norm.weight"], config)
        k = rms_norm(k, layer["self_attn.k_norm.weight"], config)
    q, k = rotate(config, q, head_dim), rotate(config, k, head_dim)
    group = num_heads // num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("thd,shd->hts", q, k) / head_dim**0.5
    scores = np.where(looks_at(config, len(x), index), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    mixed = np.einsum("hts,shd->thd", shares, v).reshape(len(x), -1)
    return linear(layer, "self_attn.o_proj", mixed)


def looks_at(config: dict[str, Any], length: int, index: int) -> NDArray[np.bool_]:
    """[length, length]: True where the row may look at the position."""
    row, position = np.arange(length)[:, None], np.arange(length)[None]
    seen = position <= row
    types = config.get("layer_types")
    if types and types[index] == "sliding_attention":
        seen &= position > row - config["sliding_window"]
    return seen


def rotate(config: dict[str, Any], heads: Array, head_dim: int) -> Array:
    angles = np.outer(np.arange(len(heads)), frequencies(config["rope_parameters"], head_dim))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = heads[..., : head_dim // 2], heads[..., head_dim // 2 :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)


def frequencies(rope: dict[str, Any], head_dim: int) -> Array:
    freqs = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    if rope["rope_type"] == "default":
        return freqs
    assert rope["rope_type"] == "llama3"
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * freqs / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * freqs / rope["factor"] + kept * freqs


def mlp(layer: dict[str, Array], x: Array) -> Array:
    gate = linear(layer, "mlp.gate_proj", x)
    up = linear(layer, "mlp.up_proj", x)
    return linear(layer, "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)


def linear(layer: dict[str, Array], name: str, x: Array) -> Array:
    return x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", np.float64(0))


def rms_norm(x: Array, weight: Array, config: dict[str, Any]) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight
