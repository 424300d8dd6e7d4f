"""Bytes that a verifier takes in memory, by its headers alone.  Pure; knows no framework."""

from __future__ import annotations

import math

from kakeya.config.verifying import VerifyingLimits
from kakeya.verifying.checkpoint import Checkpoint
from kakeya.verifying.model_config import ModelConfig
from kakeya.verifying.slots import SLOT_STEP
from kakeya.verifying.verifier import KvPlan
from kakeya.verifying.weight_names import weight_shapes
from kakeya.verifying.window import reach_of, slot_map_of

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(checkpoint: Checkpoint, dtype: str, *, copies_tied_head: bool) -> int:
    """The weights in `dtype`, packed ones packed.

    copies_tied_head: the torch twin's head has a form of its own, the MLX twin's is the embedding.
    """
    config, num_bits = checkpoint.config, 0
    item_bits = 8 * ITEM_BYTES[dtype]
    for name, shape in weight_shapes(config).items():
        count, how = math.prod(shape), checkpoint.quantized.get(name)
        packed = 0 if how is None else count * how.bits + 2 * count // how.group_size * item_bits
        num_bits += packed or count * item_bits
    if copies_tied_head and config.has_tied_head:
        num_bits += config.vocab_size * config.hidden_size * item_bits
    return num_bits // 8


def kv_bytes(config: ModelConfig, plan: KvPlan, dtype: str, limits: VerifyingLimits) -> int:
    """What a K/V of this plan takes."""
    slack = max(limits.max_block_len, limits.max_prefill_chunk_len)
    num_values = 0
    for i, shape in enumerate(config.layers):
        if shape.kv_source == i:
            slides = shape.layer_type == "sliding_attention"
            reach = reach_of(plan, config.sliding_window if slides else None)
            num_slots = slot_map_of(plan, reach, slack=slack).num_slots
            padded = -(-num_slots // SLOT_STEP) * SLOT_STEP
            num_values += 2 * shape.num_kv_heads * shape.head_dim * padded
    return num_values * ITEM_BYTES[dtype]
