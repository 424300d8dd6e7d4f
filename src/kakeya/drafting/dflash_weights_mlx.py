"""The weights of a DFlash drafter as MLX matrices, fused for few and large products.

`assemble` only concatenates, reshapes and looks up; its caller evaluates what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kakeya.compute.matmul_mlx import Matrix
from kakeya.compute.ropes_numpy import inverse_frequencies
from kakeya.drafting.dflash_config import DflashConfig
from kakeya.errors import demand

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
# A weight by its name in the checkpoint, in the dtype that is computed in (d2t: int64).
Get = Callable[[str], mx.array]
Form = Callable[[mx.array, mx.array | None], Matrix]


@dataclass(frozen=True, slots=True, eq=False)
class VerifierEnds:
    """The verifier's tensors that a drafter uses which brings none of its own.

    embedding, head: [vocab_size, hidden_size]; the same tensor where the verifier ties them.
    """

    embedding: mx.array
    head: mx.array


@dataclass(frozen=True, slots=True, eq=False)
class ConvWeights:
    """DFlash 2's convolutions before and after one part of a layer.

    base: [2, kernel_size, hidden_size]: before, after.
    dynamic: [2 * kernel_size * num_groups, hidden_size].
    """

    base: mx.array
    dynamic: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class SelectorWeights:
    """predecessors, successors: [vocab_size, rank].  projection: [rank, hidden_size]."""

    predecessors: mx.array
    successors: mx.array
    projection: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One layer.  qkv and gate_up are fused: their outputs stand one behind the other."""

    input_norm: mx.array  # [hidden_size]
    qkv: Matrix  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qk_norm: mx.array  # [num_heads + num_kv_heads, head_dim]
    out: Matrix  # [hidden_size, num_heads * head_dim]
    mlp_norm: mx.array  # [hidden_size]
    gate_up: Matrix  # [2 * intermediate_size, hidden_size]
    down: Matrix  # [hidden_size, intermediate_size]
    attention_conv: ConvWeights | None
    mlp_conv: ConvWeights | None


@dataclass(frozen=True, slots=True, eq=False)
class DflashWeights:
    """context_kv holds every layer's k and v once more, for all of a context's rows at once.

    head_ids: the id of each row of the head, ascending; None: row i is id i.
    """

    fc: Matrix  # [hidden_size, num_aux * hidden_size]
    hidden_norm: mx.array  # [hidden_size]
    context_kv: Matrix  # [num_layers * 2 * num_kv_heads * head_dim, hidden_size]
    context_k_norm: mx.array  # [num_layers, 1, head_dim]
    layers: tuple[LayerWeights, ...]
    norm: mx.array  # [hidden_size]
    embedding: mx.array  # [vocab_size, hidden_size]
    head: Matrix  # [vocab_size or draft_vocab_size, hidden_size]
    head_ids: NDArray[np.int64] | None
    inv_freq: NDArray[np.float32]  # [head_dim / 2], float32
    selector: SelectorWeights | None


def assemble(
    config: DflashConfig,
    get: Get,
    held: Collection[str],
    *,
    ends: VerifierEnds | None,
    form: Form,
) -> DflashWeights:
    """Fuse the weights that `get` gives; `held` are the names there are.

    ends: needed unless the checkpoint has embedding and head of its own.  Raises Refused
    (FAILED_PRECONDITION) where one is missing, INVALID_ARGUMENT for a d2t that leads nowhere.
    """
    layers = [f"layers.{i}" for i in range(config.num_layers)]
    head, head_ids = _head(config, get, held, ends)
    k_norms = [get(f"{at}.self_attn.k_norm.weight") for at in layers]
    return DflashWeights(
        fc=form(get("fc.weight"), None),
        hidden_norm=get("hidden_norm.weight"),
        context_kv=_context_kv(config, get, layers, form),
        context_k_norm=mx.stack(k_norms)[:, None],
        layers=tuple(_layer(config, get, at, form) for at in layers),
        norm=get("norm.weight"),
        embedding=get("embed_tokens.weight")
        if "embed_tokens.weight" in held
        else _needed(ends).embedding,
        head=form(head, None),
        head_ids=head_ids,
        inv_freq=inverse_frequencies(config.rope, config.head_dim),
        selector=_selector(config, get, held, form),
    )


def _layer(config: DflashConfig, get: Get, at: str, form: Form) -> LayerWeights:
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    q_norm, k_norm = (get(f"{attention}.{each}_norm.weight") for each in "qk")
    heads = (
        mx.broadcast_to(q_norm, (config.num_heads, config.head_dim)),
        mx.broadcast_to(k_norm, (config.num_kv_heads, config.head_dim)),
    )
    return LayerWeights(
        input_norm=get(f"{at}.input_layernorm.weight"),
        qkv=form(*_attention_rows(config, get, [f"{attention}.{each}_proj" for each in "qkv"])),
        qk_norm=mx.concatenate(list(heads)),
        out=form(*_attention_rows(config, get, [f"{attention}.o_proj"])),
        mlp_norm=get(f"{at}.post_attention_layernorm.weight"),
        gate_up=form(
            mx.concatenate([get(f"{mlp}.gate_proj.weight"), get(f"{mlp}.up_proj.weight")]), None
        ),
        down=form(get(f"{mlp}.down_proj.weight"), None),
        attention_conv=_conv(config, get, f"{at}.attention_conv", form),
        mlp_conv=_conv(config, get, f"{at}.mlp_conv", form),
    )


def _context_kv(config: DflashConfig, get: Get, layers: list[str], form: Form) -> Matrix:
    names = [f"{at}.self_attn.{each}_proj" for at in layers for each in "kv"]
    return form(*_attention_rows(config, get, names))


def _attention_rows(
    config: DflashConfig, get: Get, names: list[str]
) -> tuple[mx.array, mx.array | None]:
    """The named linear layers as one, outputs one behind the other: weight and bias."""
    weight = mx.concatenate([get(f"{name}.weight") for name in names])
    if not config.has_attention_bias:
        return weight, None
    return weight, mx.concatenate([get(f"{name}.bias") for name in names])


def _head(
    config: DflashConfig, get: Get, held: Collection[str], ends: VerifierEnds | None
) -> tuple[mx.array, NDArray[np.int64] | None]:
    """The head's rows, and their ids where they are not simply counted."""
    has_own = "lm_head.weight" in held
    head = get("lm_head.weight") if has_own else _needed(ends).head
    if config.draft_vocab_size is None:
        return head, None
    # d2t holds differences: row i is the verifier's id i + d2t[i].
    ids = np.arange(config.draft_vocab_size) + np.array(get("d2t"))
    demand(
        bool((ids >= 0).all()) and bool((ids < config.vocab_size).all()),
        "INVALID_ARGUMENT",
        f"d2t leads to ids from {int(ids.min())} to {int(ids.max())}, "
        f"vocab_size is {config.vocab_size}",
    )
    # Ascending, so that the first of equal logits is the lowest id.
    order = ids.argsort()
    # Without a head of its own the ids name the rows it takes of the verifier's.
    return head[mx.array(order if has_own else ids[order])], ids[order]


def _conv(config: DflashConfig, get: Get, at: str, form: Form) -> ConvWeights | None:
    if config.convolutions is None:
        return None
    return ConvWeights(
        base=get(f"{at}.base_kernel"), dynamic=form(get(f"{at}.kernel_projection.weight"), None)
    )


def _selector(
    config: DflashConfig, get: Get, held: Collection[str], form: Form
) -> SelectorWeights | None:
    if config.selector is None:
        return None
    at = "candidate_selector"
    predecessors, successors = (
        get(f"{at}.{book}.weight" if f"{at}.{book}.weight" in held else f"{at}.{book}")
        for book in ("predecessor_codebook", "successor_codebook")
    )
    projection = form(get(f"{at}.hidden_projection.weight"), None)
    return SelectorWeights(predecessors, successors, projection)


def _needed(ends: VerifierEnds | None) -> VerifierEnds:
    demand(
        ends is not None,
        "FAILED_PRECONDITION",
        "the drafter has no embedding or head of its own, it needs the verifier's",
    )
    assert ends is not None
    return ends


__all__ = [
    "DTYPES",
    "ConvWeights",
    "DflashWeights",
    "LayerWeights",
    "SelectorWeights",
    "VerifierEnds",
    "assemble",
]
