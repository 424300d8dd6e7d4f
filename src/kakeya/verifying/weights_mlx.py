"""The weights of a decoder as MLX matrices, read from a checked checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from kakeya.compute.matmul_mlx import DenseMatrix, Matrix, PackedMatrix, join
from kakeya.compute.mlx_arrays import arrays_in
from kakeya.compute.ropes_numpy import inverse_frequencies
from kakeya.config.verifying import VerifyingLimits
from kakeya.errors import Refused, demand
from kakeya.verifying.checkpoint import Checkpoint
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.weight_names import mlp_norm_name, part_name, weight_shapes

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm: x * weight / sqrt(mean(x²) + eps).  weight: [n] or [heads, n], float32."""

    weight: mx.array
    eps: float


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
    scalar: mx.array | None  # [1]


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """One embedding of per_layer_input_size values for each token and layer."""

    embedding: Matrix  # [vocab_size, num_layers * per_layer_input_size]
    projection: Matrix  # [num_layers * per_layer_input_size, hidden_size]
    norm: Norm  # [per_layer_input_size]


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Matrix  # [vocab_size, hidden_size]
    per_layer: PerLayerEmbedding | None
    layers: tuple[LayerWeights, ...]
    norm: Norm  # [hidden_size]
    head: Matrix  # [vocab_size, hidden_size]
    inv_freq: dict[str, NDArray[np.float32]]  # by layer type: [head_dim / 2]


def load_weights(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    limits: VerifyingLimits,
    progress: Callable[[float], None],
) -> Weights:
    """Read the weights, layer by layer, and fuse them.  `progress` gets the share done (0 … 1).

    Quantised matrices stay packed.  Raises Refused(RESOURCE_EXHAUSTED) above the memory limit
    before anything is allocated, and DATA_LOSS when a file changed since its header was checked.
    """
    config = checkpoint.config
    num_bytes = resident_bytes(checkpoint, dtype)
    demand(
        num_bytes <= limits.max_weight_bytes,
        "RESOURCE_EXHAUSTED",
        f"the weights take {num_bytes} bytes in {dtype}, the limit is {limits.max_weight_bytes}",
    )
    try:
        return _read(config, _Reader(checkpoint, DTYPES[dtype]), progress)
    except (RuntimeError, KeyError) as error:  # what MLX raises for a file it cannot read
        raise Refused("DATA_LOSS", f"the weights cannot be read: {error}") from None


def resident_bytes(checkpoint: Checkpoint, dtype: str) -> int:
    """Bytes the weights take in memory; a tied head is the embedding itself."""
    num_bits = 0
    item_bits = 8 * int(DTYPES[dtype].size)
    for name, shape in weight_shapes(checkpoint.config).items():
        count = int(np.prod(shape))
        how = checkpoint.quantized.get(name)
        if how is None:
            num_bits += count * item_bits
        else:
            num_bits += count * how.bits + 2 * count // how.group_size * item_bits
    return num_bits // 8


class _Reader:
    """Arrays by name out of files that MLX reads when their values are asked for."""

    def __init__(self, checkpoint: Checkpoint, dtype: mx.Dtype) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._opened: dict[str, mx.array] = {}
        for path in sorted(set(checkpoint.files.values())):
            loaded: Any = mx.load(str(path))
            self._opened |= loaded

    def tensor(self, name: str) -> mx.array:
        """The array in the engine's dtype."""
        return self._opened[self._checkpoint.stored[name]].astype(self._dtype)

    def norm(self, name: str) -> Norm:
        config = self._checkpoint.config
        weight = self.tensor(f"{name}.weight").astype(mx.float32) + config.norm_offset
        return Norm(weight, config.rms_norm_eps)

    def matrix(self, *names: str, has_bias: bool = False) -> Matrix:
        """The named linear layers as one, outputs one behind the other."""
        return join([self._one(name, has_bias=has_bias) for name in names])

    def _one(self, name: str, *, has_bias: bool) -> DenseMatrix | PackedMatrix:
        bias = self.tensor(f"{name}.bias") if has_bias else None
        weight = f"{name}.weight"
        how = self._checkpoint.quantized.get(weight)
        if how is None:
            return DenseMatrix(self.tensor(weight), bias)
        stored = self._checkpoint.stored[weight]
        scales = self._opened[part_name(stored, "scales")].astype(self._dtype)
        biases = self._opened[part_name(stored, "biases")].astype(self._dtype)
        return PackedMatrix(self._opened[stored], scales, biases, how, bias)


def _read(config: ModelConfig, reader: _Reader, progress: Callable[[float], None]) -> Weights:
    layers = []
    for i in range(config.num_layers):
        layers.append(_layer(config, reader, i))
        mx.eval(arrays_in(layers[-1]))
        progress((i + 1) / (config.num_layers + 1))
    embedding = reader.matrix("model.embed_tokens")
    head = embedding if config.has_tied_head else reader.matrix("lm_head")
    head_dims = {shape.layer_type: shape.head_dim for shape in config.layers}
    weights = Weights(
        embedding=embedding,
        per_layer=_per_layer_embedding(reader) if config.per_layer_input_size else None,
        layers=tuple(layers),
        norm=reader.norm("model.norm"),
        head=head,
        inv_freq={
            layer_type: inverse_frequencies(rope, head_dims[layer_type])
            for layer_type, rope in config.ropes.items()
        },
    )
    mx.eval(arrays_in((weights.embedding, weights.per_layer, weights.norm, weights.head)))
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

    def heads(weight: mx.array, count: int) -> mx.array:
        return mx.broadcast_to(weight, (count, shape.head_dim))

    q = reader.norm(f"{at}.q_norm")
    rows = [heads(q.weight, config.num_heads)]
    if shape.kv_source == index:
        rows.append(heads(reader.norm(f"{at}.k_norm").weight, shape.num_kv_heads))
    if shape.kv_source == index and config.normed_heads == "qkv":
        rows.append(mx.ones((shape.num_kv_heads, shape.head_dim)))
    return Norm(mx.concatenate(rows), q.eps)


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
        embedding=reader.matrix("model.embed_tokens_per_layer"),
        projection=reader.matrix("model.per_layer_model_projection"),
        norm=reader.norm("model.per_layer_projection_norm"),
    )
