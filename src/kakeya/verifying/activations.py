"""How many bytes of activations one pass holds at its widest.  Pure; knows shapes only."""

from __future__ import annotations

from kakeya.verifying.model_config import LayerShape, ModelConfig
from kakeya.verifying.slots import SLOT_STEP

FLOAT32_BYTES = 4
# The rows of a K/V head's queries come in multiples of so many.
QUERY_STEP = 8


def peak_activation_bytes(
    config: ModelConfig, *, num_rows: int, num_positions: int, itemsize: int
) -> int:
    """The most that `num_rows` rows need at once where `num_positions` are read, without K/V.

    What the layers of a type share (rotations, padded queries, masks) and the residual stay;
    beside them lies the widest part of the pass: a layer's heads with their norm and rotation, its
    MLP, or the logits in float32.  itemsize: bytes of one value.  Spec: P-13.
    """
    types = {shape.layer_type: shape for shape in config.layers}.values()
    shared = sum(_shared(config, s, num_rows, num_positions, itemsize) for s in types)
    heads = max((config.num_heads + 2 * s.num_kv_heads) * s.head_dim for s in config.layers)
    inner = max(s.intermediate_size for s in config.layers)
    if config.experts is not None:
        inner = max(inner, config.experts.intermediate_size)
    widest = max(3 * heads, 3 * inner, config.hidden_size) * itemsize
    narrow = itemsize if itemsize < FLOAT32_BYTES else 0
    logits = config.vocab_size * (FLOAT32_BYTES + narrow)
    return shared + num_rows * (2 * config.hidden_size * itemsize + max(widest, logits))


def _shared(
    config: ModelConfig, shape: LayerShape, num_rows: int, num_positions: int, itemsize: int
) -> int:
    """Rotations, queries and mask of one type of layer, which stay for the whole pass."""
    num_read = num_positions
    if shape.layer_type == "sliding_attention" and config.sliding_window is not None:
        num_read = min(num_read, config.sliding_window + 2 * SLOT_STEP)
    num_slots = -(-num_read // SLOT_STEP) * SLOT_STEP
    group = config.num_heads // shape.num_kv_heads
    num_queries = -(-num_rows * group // QUERY_STEP) * QUERY_STEP
    heads = (config.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    queries = num_queries * shape.num_kv_heads * shape.head_dim
    values = 2 * num_rows * heads + queries + num_queries * num_slots
    return values * itemsize + num_rows * group * num_slots  # and the mask's bits, a byte each


__all__ = ["peak_activation_bytes"]
