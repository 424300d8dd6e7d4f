"""Many continuations of a decoder at once, to train its drafter on what it will really say."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kakeya.training.decoder_torch import (
    DecoderShape,
    Params,
    mlp,
    qkv,
    rms_norm,
    rotate,
    rotations,
)


class _Cache:
    """K and V of all layers for B rows: [num_layers, 2, B, num_kv_heads, max_len, head_dim]."""

    def __init__(self, shape: DecoderShape, B: int, max_len: int) -> None:
        self.kv = torch.zeros(shape.num_layers, 2, B, shape.num_kv_heads, max_len, shape.head_dim)
        self.length = 0


@torch.inference_mode()
def continue_all(
    params: Params,
    shape: DecoderShape,
    prompts: Tensor,
    *,
    num_ids: int,
    temperatures: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """[B, prompt_len + num_ids]: prompts [B, prompt_len] and what follows.

    temperatures: [B]; 0 takes the likeliest id.
    """
    B, prompt_len = prompts.shape
    cache = _Cache(shape, B, prompt_len + num_ids)
    ids = torch.empty(B, prompt_len + num_ids, dtype=torch.int64)
    ids[:, :prompt_len] = prompts
    logits = _forward(params, shape, cache, prompts)
    for at in range(prompt_len, prompt_len + num_ids):
        noise = (
            torch.rand(logits.shape, generator=rng).clamp_(min=1e-20).log_().neg_().log_().neg_()
        )
        chosen = (logits + temperatures[:, None] * noise).argmax(-1)
        ids[:, at] = chosen
        if at + 1 < prompt_len + num_ids:
            logits = _forward(params, shape, cache, chosen[:, None])
    return ids


def _forward(params: Params, shape: DecoderShape, cache: _Cache, ids: Tensor) -> Tensor:
    """Append ids [B, T]; the last row's logits [B, vocab_size]."""
    first, T = cache.length, ids.shape[1]
    end = first + T
    cos, sin = rotations(torch.arange(first, end), shape.head_dim, shape.rope_theta)
    ahead = torch.arange(first, end)[:, None] - torch.arange(end)[None]
    masks = {
        "full_attention": ahead >= 0,
        "sliding_attention": (ahead >= 0) & (ahead < shape.sliding_window),
    }
    x = params["model.embed_tokens.weight"][ids]
    for i, layer_type in enumerate(shape.layer_types):
        at = f"model.layers.{i}"
        normed = rms_norm(x, params[f"{at}.input_layernorm.weight"], shape.eps)
        q, k, v, _ = qkv(params, f"{at}.self_attn", normed, shape)
        cache.kv[i, 0, :, :, first:end] = rotate(k, cos, sin)
        cache.kv[i, 1, :, :, first:end] = v
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin),
            cache.kv[i, 0, :, :, :end],
            cache.kv[i, 1, :, :, :end],
            attn_mask=masks[layer_type],
            enable_gqa=True,
        )
        x = x + mixed.transpose(1, 2).flatten(2) @ params[f"{at}.self_attn.o_proj.weight"].T
        normed = rms_norm(x, params[f"{at}.post_attention_layernorm.weight"], shape.eps)
        x = x + mlp(params, f"{at}.mlp", normed)
    cache.length = end
    last = rms_norm(x[:, -1], params["model.norm.weight"], shape.eps)
    return last @ params["model.embed_tokens.weight"].T
