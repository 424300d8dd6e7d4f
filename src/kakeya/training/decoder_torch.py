"""A Qwen3 decoder under autograd: the tiny verifier while it is trained.

Names and shapes are the checkpoint's.  The engine that serves it is verifying/model_torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Params = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What the decoder's config.json says, as far as it is computed here."""

    vocab_size: int = 2048
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    max_context_len: int = 2048
    rope_theta: float = 10_000.0
    eps: float = 1e-6
    sliding_window: int = 128
    # Every third layer sees all; the others slide.
    full_every: int = 3

    @property
    def layer_types(self) -> tuple[str, ...]:
        return tuple(
            "full_attention" if (i + 1) % self.full_every == 0 else "sliding_attention"
            for i in range(self.num_layers)
        )


def shape_json(shape: DecoderShape) -> dict[str, object]:
    """What the config.json of the decoder and of its drafter have in common."""
    return {
        "model_type": "qwen3",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_context_len,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def config_json(shape: DecoderShape, *, eos_id: int) -> dict[str, object]:
    """config.json of the checkpoint."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        **shape_json(shape),
        "num_hidden_layers": shape.num_layers,
        "use_sliding_window": True,
        "sliding_window": shape.sliding_window,
        "max_window_layers": 0,
        "layer_types": list(shape.layer_types),
        "eos_token_id": eos_id,
    }


def layer_shapes(shape: DecoderShape, at: str) -> dict[str, tuple[int, ...]]:
    """The weights of one layer under the name `at`; matrices are [out, in]."""
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    h, m = shape.hidden_size, shape.intermediate_size
    return {
        f"{at}.self_attn.q_proj.weight": (q, h),
        f"{at}.self_attn.k_proj.weight": (kv, h),
        f"{at}.self_attn.v_proj.weight": (kv, h),
        f"{at}.self_attn.o_proj.weight": (h, q),
        f"{at}.self_attn.q_norm.weight": (shape.head_dim,),
        f"{at}.self_attn.k_norm.weight": (shape.head_dim,),
        f"{at}.mlp.gate_proj.weight": (m, h),
        f"{at}.mlp.up_proj.weight": (m, h),
        f"{at}.mlp.down_proj.weight": (h, m),
        f"{at}.input_layernorm.weight": (h,),
        f"{at}.post_attention_layernorm.weight": (h,),
    }


def decoder_shapes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, shape.hidden_size)
    }
    for i in range(shape.num_layers):
        shapes |= layer_shapes(shape, f"model.layers.{i}")
    shapes["model.norm.weight"] = (shape.hidden_size,)
    return shapes


def initial(shapes: Mapping[str, tuple[int, ...]], rng: torch.Generator) -> dict[str, Tensor]:
    """Leaf tensors: norms at 1, matrices drawn with a standard deviation of 1 / sqrt(2 · in)."""
    params = {}
    for name, dims in shapes.items():
        if len(dims) == 1:
            param = torch.ones(dims)
        else:
            std = 0.02 if "embed" in name else (2 * dims[1]) ** -0.5
            param = torch.randn(dims, generator=rng) * std
        params[name] = param.requires_grad_()
    return params


def matrices(params: Params) -> frozenset[str]:
    """The names Muon moves: matrices between hidden states, not the embedding."""
    return frozenset(n for n, p in params.items() if p.dim() == 2 and "embed" not in n)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def rotations(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin for positions of any shape: [..., head_dim], float32."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = positions[..., None].to(torch.float32) * theta**-steps
    both = torch.cat((angles, angles), -1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [..., T, head_dim], turned by its row's position; halves are the pairs."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def causal_masks(T: int, window: int) -> dict[str, Tensor]:
    """layer type → [T, T], True where a row may look."""
    ahead = torch.arange(T)[:, None] - torch.arange(T)[None]
    return {
        "full_attention": ahead >= 0,
        "sliding_attention": (ahead >= 0) & (ahead < window),
    }


def qkv(
    params: Params, at: str, x: Tensor, shape: DecoderShape
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v after their norms, not rotated: [B, heads, T, head_dim]; and k before its norm."""
    B, T, _ = x.shape
    q = (x @ params[f"{at}.q_proj.weight"].T).view(B, T, shape.num_heads, -1).transpose(1, 2)
    k = (x @ params[f"{at}.k_proj.weight"].T).view(B, T, shape.num_kv_heads, -1).transpose(1, 2)
    v = (x @ params[f"{at}.v_proj.weight"].T).view(B, T, shape.num_kv_heads, -1).transpose(1, 2)
    q = rms_norm(q, params[f"{at}.q_norm.weight"], shape.eps)
    normed = rms_norm(k, params[f"{at}.k_norm.weight"], shape.eps)
    return q, normed, v, k


def mlp(params: Params, at: str, x: Tensor) -> Tensor:
    gate = F.silu(x @ params[f"{at}.gate_proj.weight"].T)
    return (gate * (x @ params[f"{at}.up_proj.weight"].T)) @ params[f"{at}.down_proj.weight"].T


def layer_output(
    params: Params,
    at: str,
    x: Tensor,
    shape: DecoderShape,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
) -> Tensor:
    """What the layer `at` makes of x [B, T, hidden_size]; mask [T, T] is True where a row looks.

    cos, sin: [T, head_dim], the rotations of the rows' positions.
    """
    normed = rms_norm(x, params[f"{at}.input_layernorm.weight"], shape.eps)
    q, k, v, _ = qkv(params, f"{at}.self_attn", normed, shape)
    mixed = F.scaled_dot_product_attention(
        rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask, enable_gqa=True
    )
    x = x + mixed.transpose(1, 2).flatten(2) @ params[f"{at}.self_attn.o_proj.weight"].T
    normed = rms_norm(x, params[f"{at}.post_attention_layernorm.weight"], shape.eps)
    return x + mlp(params, f"{at}.mlp", normed)


def hidden_states(params: Params, ids: Tensor, shape: DecoderShape) -> list[Tensor]:
    """Every layer's output over ids [B, T], and last the normed one: num_layers + 1 tensors."""
    T = ids.shape[1]
    cos, sin = rotations(torch.arange(T), shape.head_dim, shape.rope_theta)
    masks = causal_masks(T, shape.sliding_window)
    x = params["model.embed_tokens.weight"][ids]
    outputs = []
    for i, layer_type in enumerate(shape.layer_types):
        x = layer_output(params, f"model.layers.{i}", x, shape, cos, sin, masks[layer_type])
        outputs.append(x)
    outputs.append(rms_norm(x, params["model.norm.weight"], shape.eps))
    return outputs


def logits(params: Params, ids: Tensor, shape: DecoderShape) -> Tensor:
    """[B, T, vocab_size]."""
    return hidden_states(params, ids, shape)[-1] @ params["model.embed_tokens.weight"].T
