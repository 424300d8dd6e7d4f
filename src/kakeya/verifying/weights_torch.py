"""The weights of a decoder as torch matrices, read from a checked checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kakeya.compute.matmul_torch import Matrix, prepare
from kakeya.compute.ropes_torch import inverse_frequencies
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.checkpoint import Checkpoint
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.weight_names import mlp_norm_name, weight_shapes

# A weight [out, in] and its bias, ready to be applied to rows.
Form = Callable[[Tensor, Tensor | None], Matrix]
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm over n values: x * weight / sqrt(sum(x²) + eps), with n folded into both.

    weight: [n] or [heads, n], float32, times sqrt(n).  eps: one value, float32, times n.
    """

    weight: Tensor
    eps: Tensor


@dataclass(frozen=True, slots=True)
class Mlp:
    """act(gate) * up, and down: one MLP, or one expert."""

    gate_up: Matrix  # [2 * intermediate_size, hidden_size]
    down: Matrix  # [hidden_size, intermediate_size]


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """A router and its experts."""

    router: Matrix  # [num_experts, hidden_size]
    experts: tuple[Mlp, ...]


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """What a layer makes of its own part of the per-layer embedding."""

    gate: Matrix  # [per_layer_input_size, hidden_size]
    projection: Matrix  # [hidden_size, per_layer_input_size]
    norm: Norm  # [hidden_size]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer.  qkv and gate_up are fused: their outputs stand one behind the other.

    qkv: [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]; without V's rows where V is what
    K's rows put out, and without either's in a layer that reads another one's K and V.
    head_norm: over the first heads of qkv, as many as it has rows.
    """

    input_norm: Norm  # [hidden_size]
    qkv: Matrix
    head_norm: Norm | None  # [heads, head_dim]
    out: Matrix  # [hidden_size, num_heads * head_dim]
    out_norm: Norm | None  # [hidden_size]
    mlp_norm: Norm  # [hidden_size]
    mlp: Mlp | SparseMlp
    mlp_out_norm: Norm | None  # [hidden_size]
    per_layer_input: PerLayerInput | None
    scalar: Tensor | None  # [1]


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """One embedding of per_layer_input_size values for each token and layer."""

    embedding: Tensor  # [vocab_size, num_layers * per_layer_input_size]
    projection: Matrix  # [num_layers * per_layer_input_size, hidden_size]
    norm: Norm  # [per_layer_input_size]


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Tensor  # [vocab_size, hidden_size]
    per_layer: PerLayerEmbedding | None
    layers: tuple[LayerWeights, ...]
    norm: Norm  # [hidden_size]
    head: Matrix  # [vocab_size, hidden_size]
    inv_freq: dict[str, Tensor]  # by layer type: [head_dim / 2], float32


def load_weights(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    limits: VerifyingLimits,
    progress: Callable[[float], None],
    form: Form = prepare,
) -> Weights:
    """Read the weights, layer by layer, and fuse them.  `progress` gets the share done (0 … 1).

    form: makes a matrix of a weight and a bias; training, which is not exact by row, has another.

    Raises Refused(RESOURCE_EXHAUSTED) above the memory limit before anything is allocated, and
    DATA_LOSS when a file changed since its header was checked.
    """
    config = checkpoint.config
    demand(
        not checkpoint.quantized,
        "UNIMPLEMENTED",
        "the weights are in MLX's quantised layout, which the mlx backend computes",
    )
    num_bytes = resident_bytes(config, dtype)
    demand(
        num_bytes <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the weights take {num_bytes} bytes in {dtype}, the limit is {limits.max_weight_bytes}",
    )
    try:
        with ExitStack() as stack:
            reader = _Reader(checkpoint, DTYPES[dtype], stack, form)
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

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, stack: ExitStack, form: Form
    ) -> None:
        self.form = form
        self._checkpoint = checkpoint
        self._dtype = dtype
        paths = set(checkpoint.files.values())
        self._opened: dict[Any, Any] = {
            path: stack.enter_context(safe_open(path, framework="pt")) for path in sorted(paths)
        }

    def tensor(self, name: str) -> Tensor:
        """A copy in the engine's dtype; the file's pages may be dropped again."""
        opened = self._opened[self._checkpoint.files[name]]
        found: Tensor = opened.get_tensor(self._checkpoint.stored[name])
        return found.to(self._dtype, copy=True)

    def norm(self, name: str) -> Norm:
        config = self._checkpoint.config
        weight = self.tensor(f"{name}.weight").to(torch.float32) + config.norm_offset
        return norm_of(weight, config.rms_norm_eps)

    def matrix(self, *names: str, has_bias: bool = False) -> Matrix:
        """The named linear layers as one, outputs one behind the other."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        bias = torch.cat([self.tensor(f"{name}.bias") for name in names]) if has_bias else None
        return self.form(weight, bias)


def norm_of(weight: Tensor, eps: float) -> Norm:
    """weight: [n] or [heads, n], float32."""
    n = weight.shape[-1]
    return Norm(weight * n**0.5, torch.tensor(n * eps, dtype=torch.float32))


def _read(config: ModelConfig, reader: _Reader, progress: Callable[[float], None]) -> Weights:
    layers = []
    for i in range(config.num_layers):
        layers.append(_layer(config, reader, i))
        progress((i + 1) / (config.num_layers + 1))
    embedding = reader.tensor("model.embed_tokens.weight")
    head = embedding if config.has_tied_head else reader.tensor("lm_head.weight")
    head_dims = {shape.layer_type: shape.head_dim for shape in config.layers}
    weights = Weights(
        embedding=embedding,
        per_layer=_per_layer_embedding(reader) if config.per_layer_input_size else None,
        layers=tuple(layers),
        norm=reader.norm("model.norm"),
        head=reader.form(head, None),
        inv_freq={
            layer_type: inverse_frequencies(rope, head_dims[layer_type])
            for layer_type, rope in config.ropes.items()
        },
    )
    progress(1.0)
    return weights


def _layer(config: ModelConfig, reader: _Reader, index: int) -> LayerWeights:
    at, shape = f"model.layers.{index}", config.layers[index]
    has_post = config.has_post_norms
    return LayerWeights(
        input_norm=reader.norm(f"{at}.input_layernorm"),
        qkv=_qkv(config, reader, f"{at}.self_attn", index),
        head_norm=_head_norm(config, reader, f"{at}.self_attn", index),
        out=reader.matrix(f"{at}.self_attn.o_proj", has_bias=config.has_attention_bias),
        out_norm=reader.norm(f"{at}.post_attention_layernorm") if has_post else None,
        mlp_norm=reader.norm(f"{at}.{mlp_norm_name(config)}"),
        mlp=_sparse(config, reader, f"{at}.mlp")
        if shape.is_sparse
        else _mlp(reader, f"{at}.mlp", has_bias=config.has_mlp_bias),
        mlp_out_norm=reader.norm(f"{at}.post_feedforward_layernorm") if has_post else None,
        per_layer_input=_per_layer_input(reader, at) if config.per_layer_input_size else None,
        scalar=reader.tensor(f"{at}.layer_scalar") if config.has_layer_scalar else None,
    )


def _qkv(config: ModelConfig, reader: _Reader, at: str, index: int) -> Matrix:
    shape = config.layers[index]
    names = [f"{at}.q_proj"]
    if shape.kv_source == index:
        names.append(f"{at}.k_proj")
    if shape.kv_source == index and shape.has_v_proj:
        names.append(f"{at}.v_proj")
    return reader.matrix(*names, has_bias=config.has_attention_bias)


def _head_norm(config: ModelConfig, reader: _Reader, at: str, index: int) -> Norm | None:
    """q_norm's weight for every query head, k_norm's for every K head, ones for V's heads."""
    if config.normed_heads == "none":
        return None
    shape = config.layers[index]
    q = reader.norm(f"{at}.q_norm")
    rows = [q.weight.expand(config.num_heads, -1)]
    if shape.kv_source == index:
        k = reader.norm(f"{at}.k_norm")
        rows.append(k.weight.expand(shape.num_kv_heads, -1))
    if shape.kv_source == index and config.normed_heads == "qkv":
        v = norm_of(torch.ones(shape.num_kv_heads, shape.head_dim), config.rms_norm_eps)
        rows.append(v.weight)
    return Norm(torch.cat(rows), q.eps)


def _mlp(reader: _Reader, at: str, *, has_bias: bool) -> Mlp:
    return Mlp(
        gate_up=reader.matrix(f"{at}.gate_proj", f"{at}.up_proj", has_bias=has_bias),
        down=reader.matrix(f"{at}.down_proj", has_bias=has_bias),
    )


def _sparse(config: ModelConfig, reader: _Reader, at: str) -> SparseMlp:
    assert config.experts is not None
    count = config.experts.count
    experts = tuple(_mlp(reader, f"{at}.experts.{i}", has_bias=False) for i in range(count))
    return SparseMlp(reader.matrix(f"{at}.gate"), experts)


def _per_layer_input(reader: _Reader, at: str) -> PerLayerInput:
    return PerLayerInput(
        gate=reader.matrix(f"{at}.per_layer_input_gate"),
        projection=reader.matrix(f"{at}.per_layer_projection"),
        norm=reader.norm(f"{at}.post_per_layer_input_norm"),
    )


def _per_layer_embedding(reader: _Reader) -> PerLayerEmbedding:
    return PerLayerEmbedding(
        embedding=reader.tensor("model.embed_tokens_per_layer.weight"),
        projection=reader.matrix("model.per_layer_model_projection"),
        norm=reader.norm("model.per_layer_projection_norm"),
    )
