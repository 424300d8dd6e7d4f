"""The weights of a Llama or Qwen3 decoder as torch matrices, read from a checked checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kakeya.compute.matmul_torch import Matrix, prepare
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.checkpoint import Checkpoint
from kakeya.verifying.model_config import ModelConfig, weight_shapes

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm over n values: x * weight / sqrt(sum(x²) + eps), with n folded into both.

    weight: [n] or [heads, n], float32, times sqrt(n).  eps: one value, float32, times n.
    """

    weight: Tensor
    eps: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.  qkv and gate_up are fused: their outputs stand one behind the other."""

    input_norm: Norm  # [hidden_size]
    qkv: Matrix  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    qk_norm: Norm | None  # [num_heads + num_kv_heads, head_dim]; Qwen3
    out: Matrix  # [hidden_size, num_heads * head_dim]
    mlp_norm: Norm  # [hidden_size]
    gate_up: Matrix  # [2 * intermediate_size, hidden_size]
    down: Matrix  # [hidden_size, intermediate_size]


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [vocab_size, hidden_size]
    layers: tuple[LayerWeights, ...]
    norm: Norm  # [hidden_size]
    head: Matrix  # [vocab_size, hidden_size]
    inv_freq: Tensor  # [head_dim / 2], float32


def load_weights(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    limits: VerifyingLimits,
    progress: Callable[[float], None],
) -> Weights:
    """Read the weights, layer by layer, and fuse them.  `progress` gets the share done (0 … 1).

    Raises Refused(RESOURCE_EXHAUSTED) above the memory limit before anything is allocated, and
    DATA_LOSS when a file changed since its header was checked.
    """
    config = checkpoint.config
    num_bytes = resident_bytes(config, dtype)
    demand(
        num_bytes <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the weights take {num_bytes} bytes in {dtype}, the limit is {limits.max_weight_bytes}",
    )
    try:
        with ExitStack() as stack:
            reader = _Reader(checkpoint, DTYPES[dtype], stack)
            return _read(config, reader, progress)
    except SafetensorError as error:
        raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None


def resident_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes the weights take in memory; a tied head counts twice, it has a form of its own."""
    shapes = weight_shapes(config)
    num_params = sum(torch.Size(shape).numel() for shape in shapes.values())
    if config.has_tied_head:
        num_params += config.vocab_size * config.hidden_size
    return num_params * DTYPES[dtype].itemsize


class _Reader:
    """Tensors by name out of memory-mapped files that are open as long as the stack is."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, stack: ExitStack) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        paths = set(checkpoint.files.values())
        self._opened: dict[Any, Any] = {
            path: stack.enter_context(safe_open(path, framework="pt")) for path in sorted(paths)
        }

    def tensor(self, name: str) -> Tensor:
        """A copy in the engine's dtype; the file's pages may be dropped again."""
        found: Tensor = self._opened[self._checkpoint.files[name]].get_tensor(name)
        return found.to(self._dtype, copy=True)

    def norm(self, name: str, eps: float) -> Norm:
        weight = self.tensor(f"{name}.weight").to(torch.float32)
        n = weight.shape[-1]
        return Norm(weight * n**0.5, torch.tensor(n * eps, dtype=torch.float32))

    def matrix(self, *names: str, has_bias: bool) -> Matrix:
        """The named linear layers as one, outputs one behind the other."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        bias = torch.cat([self.tensor(f"{name}.bias") for name in names]) if has_bias else None
        return prepare(weight, bias)


def _read(config: ModelConfig, reader: _Reader, progress: Callable[[float], None]) -> Weights:
    layers = []
    for i in range(config.num_layers):
        layers.append(_layer(config, reader, f"model.layers.{i}"))
        progress((i + 1) / (config.num_layers + 1))
    embedding = reader.tensor("model.embed_tokens.weight")
    head = embedding if config.has_tied_head else reader.tensor("lm_head.weight")
    weights = Weights(
        embedding=embedding,
        layers=tuple(layers),
        norm=reader.norm("model.norm", config.rms_norm_eps),
        head=prepare(head, None),
        inv_freq=inverse_frequencies(config),
    )
    progress(1.0)
    return weights


def _layer(config: ModelConfig, reader: _Reader, at: str) -> LayerWeights:
    attention, mlp = f"{at}.self_attn", f"{at}.mlp"
    has_bias = config.has_attention_bias
    qkv = (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")
    return LayerWeights(
        input_norm=reader.norm(f"{at}.input_layernorm", config.rms_norm_eps),
        qkv=reader.matrix(*qkv, has_bias=has_bias),
        qk_norm=_qk_norm(config, reader, attention) if config.has_qk_norm else None,
        out=reader.matrix(f"{attention}.o_proj", has_bias=has_bias),
        mlp_norm=reader.norm(f"{at}.post_attention_layernorm", config.rms_norm_eps),
        gate_up=reader.matrix(f"{mlp}.gate_proj", f"{mlp}.up_proj", has_bias=config.has_mlp_bias),
        down=reader.matrix(f"{mlp}.down_proj", has_bias=config.has_mlp_bias),
    )


def _qk_norm(config: ModelConfig, reader: _Reader, at: str) -> Norm:
    """q_norm's weight for every query head, k_norm's for every K head behind them."""
    q = reader.norm(f"{at}.q_norm", config.rms_norm_eps)
    k = reader.norm(f"{at}.k_norm", config.rms_norm_eps)
    of_q = q.weight.expand(config.num_heads, -1)
    of_k = k.weight.expand(config.num_kv_heads, -1)
    return Norm(torch.cat((of_q, of_k)), q.eps)


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """Angle per position of each pair of dimensions: [head_dim / 2], float32.

    Llama 3's scaling divides wavelengths longer than the original context by `factor`, keeps
    those much shorter, and blends between (Llama 3.1 model card).
    """
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32)
    inv_freq = 1.0 / (config.rope_theta ** (steps / config.head_dim))
    scaling = config.rope_scaling
    if scaling is None:
        return inv_freq
    wave_len = 2 * torch.pi / inv_freq
    turns = scaling.original_max_len / wave_len
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    blended = (1 - kept_share) * inv_freq / scaling.factor + kept_share * inv_freq
    long, short = wave_len > scaling.original_max_len / low, turns > high
    return torch.where(long, inv_freq / scaling.factor, torch.where(short, inv_freq, blended))
