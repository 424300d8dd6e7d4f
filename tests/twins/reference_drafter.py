"""A DFlash drafter in numpy, in float64, without any cache: what both twins must draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tests.twins.reference import Array, frequencies, linear, mlp, rms_norm


class ReferenceDrafter:
    """One checkpoint, with the verifier's two ends: embedding, head [vocab_size, hidden_size]."""

    def __init__(self, folder: Path, embedding: Array, head: Array) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.own = self.config["dflash_config"]
        found = load_file(folder / "model.safetensors")
        self.weights = {name: weight.astype(np.float64) for name, weight in found.items()}
        self.embedding, self.head = embedding.astype(np.float64), head.astype(np.float64)

    def draft(self, aux: Array, bonus_id: int, num_drafts: int) -> list[int]:
        """aux: [context_len, num_aux * hidden_size], all of the context."""
        hidden = self.hidden(aux, bonus_id, num_drafts)
        logits = hidden @ self.head.T * self.own.get("output_multiplier", 1.0)
        cap = self.own.get("final_logit_softcapping")
        logits = np.tanh(logits / cap) * cap if cap else logits
        if "selector_rank" not in self.own:
            return [int(each) for each in logits.argmax(-1)]
        return self._path(hidden, logits, bonus_id)

    def hidden(self, aux: Array, bonus_id: int, num_drafts: int) -> Array:
        """[num_drafts, hidden_size]: the masks' last hidden states."""
        ids = np.array([bonus_id] + [self.own["mask_token_id"]] * num_drafts)
        x = self.embedding[ids] * self.own.get("input_embedding_scale", 1.0)
        features = rms_norm(linear(self.weights, "fc", aux.astype(np.float64)),
                            self.weights["hidden_norm.weight"], self.config)  # fmt: skip
        for i in range(self.config["num_hidden_layers"]):
            at = f"layers.{i}."
            layer = {k.removeprefix(at): w for k, w in self.weights.items() if k.startswith(at)}
            h = rms_norm(x, layer["input_layernorm.weight"], self.config)
            x = x + self._mixed(layer, "attention_conv", h, lambda h, own=layer, i=i: (
                self._attention(own, features, h, i)))  # fmt: skip
            h = rms_norm(x, layer["post_attention_layernorm.weight"], self.config)
            x = x + self._mixed(layer, "mlp_conv", h, lambda h, own=layer: mlp(own, h))
        return rms_norm(x, self.weights["norm.weight"], self.config)[1:]

    def _attention(self, layer: dict[str, Array], features: Array, h: Array, index: int) -> Array:
        num_context, head_dim = len(features), self.config["head_dim"]
        rows = np.concatenate((features, h))
        q, k, v = (
            linear(layer, f"self_attn.{name}_proj", x).reshape(len(x), -1, head_dim)
            for name, x in (("q", h), ("k", rows), ("v", rows))
        )
        at = np.arange(len(rows))
        q = self._turned(
            rms_norm(q, layer["self_attn.q_norm.weight"], self.config), at[num_context:]
        )
        k = self._turned(rms_norm(k, layer["self_attn.k_norm.weight"], self.config), at)
        group = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) / head_dim**0.5
        scores = np.where(self._seen(at[num_context:], at, index), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shd->thd", shares, v).reshape(len(h), -1)
        return linear(layer, "self_attn.o_proj", mixed)

    def _seen(self, rows: Any, keys: Any, index: int) -> Any:
        slides = self.config["layer_types"][index] == "sliding_attention"
        distance = rows[:, None] - keys[None]
        seen = distance >= 0 if self.config.get("is_causal", slides) else distance == distance
        return seen & (abs(distance) < self.config["sliding_window"]) if slides else seen

    def _turned(self, heads: Array, at: Any) -> Array:
        rope = self.config.get("rope_parameters") or {
            "rope_type": "default",
            "rope_theta": self.config["rope_theta"],
        }
        angles = np.outer(at, frequencies(rope, heads.shape[-1]))
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate((first * cos - second * sin, second * cos + first * sin), -1)

    def _mixed(self, layer: dict[str, Array], conv: str, h: Array, part: Any) -> Array:
        """DFlash 2: rows are mixed with those just before them, ahead of the part and behind it."""
        base = layer.get(f"{conv}.base_kernel")
        if base is None:
            return np.asarray(part(h))
        size, group_size = self.own["conv_kernel_size"], self.own["conv_group_size"]
        dynamic = linear(layer, f"{conv}.kernel_projection", h).reshape(len(h), 2, size, -1)
        kernels = base[None] + np.repeat(dynamic, group_size, axis=-1)
        return _convolved(part(_convolved(h, kernels[:, 0])), kernels[:, 1])

    def _path(self, hidden: Array, logits: Array, bonus_id: int) -> list[int]:
        at = "candidate_selector."
        own = {k.removeprefix(at): w for k, w in self.weights.items() if k.startswith(at)}
        path, before = [], bonus_id
        for row, scores in zip(linear(own, "hidden_projection", hidden), logits, strict=True):
            likeliest = np.sort(np.argsort(-scores)[: self.own["selector_top_k"]])
            bonds = own["successor_codebook"][likeliest] @ (
                own["predecessor_codebook"][before] * row
            )
            before = int(likeliest[(scores[likeliest] + bonds).argmax()])
            path.append(before)
        return path


def _convolved(h: Array, kernel: Array) -> Array:
    """h: [T, hidden_size]; kernel: [T, kernel_size, hidden_size]."""
    out = np.zeros_like(h)
    for offset in range(min(kernel.shape[1], len(h))):
        out[offset:] += h[: len(h) - offset] * kernel[offset:, offset]
    return out
