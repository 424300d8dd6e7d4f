"""Ways in which a checkpoint's folder can be wrong, each with the status and the words it gets."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

MISSING, CONFIG = 69, 78
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """words: what the line must name."""

    name: str
    damage: Damage
    status: int
    words: str

    def __str__(self) -> str:
        return self.name


def config(**changes: Any) -> Damage:
    """Fields changed; None takes one out."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        fields = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))

    return damage


def dflash(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        said = json.loads((folder / "config.json").read_text())["dflash_config"]
        fields = {k: v for k, v in {**said, **changes}.items() if v is not None}
        config(dflash_config=fields)(folder)

    return damage


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content) and None


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def weights(**changes: torch.Tensor | None) -> Damage:
    """`__` stands for a dot; None takes a weight out."""

    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        held = {**load_file(path), **{k.replace("__", "."): v for k, v in changes.items()}}
        save_file({k: v for k, v in held.items() if v is not None}, path)

    return damage


def cut(num_bytes: int, name: str = "model.safetensors") -> Damage:
    """The last bytes are gone, as after a download that broke off."""

    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-num_bytes])

    return damage


def header(change: Callable[[dict[str, Any]], None]) -> Damage:
    """Another header before the same values."""

    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        held = path.read_bytes()
        (size,) = struct.unpack("<Q", held[:8])
        fields = json.loads(held[8 : 8 + size])
        change(fields)
        said = json.dumps(fields).encode()
        path.write_bytes(struct.pack("<Q", len(said)) + said + held[8 + size :])

    return damage


def overlap(fields: dict[str, Any]) -> None:
    """Two weights of one size lie at the same place."""
    named = {name: each for name, each in fields.items() if name != "__metadata__"}
    one, another = [name for name, each in named.items() if each["shape"] == [384, 128]][:2]
    fields[another]["data_offsets"] = fields[one]["data_offsets"]


def huge_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + path.read_bytes()[8:])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def fewer_rows(folder: Path) -> None:
    """An embedding of one row less than the tokenizer has ids."""
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    weights(model__embed_tokens__weight=rows[:2047].clone())(folder)
    config(vocab_size=2047)(folder)


def narrow_maps(folder: Path) -> None:
    """An f_θ of a drafter with fewer features."""
    path = folder / "ftheta.safetensors"
    with safe_open(path, framework="pt") as opened:
        said = opened.metadata()
    maps = {name: each[:, 1:].contiguous() for name, each in load_file(path).items()}
    save_file(maps, path, metadata=said)


def sharded(placed: dict[str, str]) -> Damage:
    """An index that puts all weights into the one file but `placed`, name → shard."""

    def damage(folder: Path) -> None:
        single = folder / "model.safetensors"
        names = dict.fromkeys(load_file(single), "model-1.safetensors")
        single.rename(folder / "model-1.safetensors")
        index = {"weight_map": {**names, **placed}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return damage


NORM = "model.norm.weight"
ONES = torch.ones(128)
BIG = " " * (9 << 20)

OF_BOTH = (
    Case("no weights", without("model.safetensors"), MISSING, "neither model.safetensors nor"),
    Case("a pickle", pickled, MISSING, "pytorch_model.bin is a pickle, which is never read"),
    Case("cut", cut(1), CONFIG, "model.safetensors is cut or no safetensors"),
    Case("cut to nothing", text("model.safetensors", ""), CONFIG, "model.safetensors is cut"),
    Case("no safetensors", text("model.safetensors", "PK" * 99), CONFIG, "or no safetensors"),
    Case("a huge header", huge_header, CONFIG, "model.safetensors is cut or no safetensors"),
    Case("weights overlap", header(overlap), CONFIG, "model.safetensors is cut or no safetensors"),
    Case("a cut config", text("config.json", '{"model_type": "qw'), CONFIG, "config.json is not"),
    Case("a list", text("config.json", "[]"), CONFIG, "config.json must hold an object"),
    Case("a huge config", text("config.json", "{" + BIG + "}"), CONFIG, "has 9437186 bytes, the l"),
    Case("a shard is gone", sharded({"a": "b.safetensors"}), MISSING, "shard 'b.safetensors' is"),
    Case("a shard outside", sharded({"a": "../b.safetensors"}), CONFIG, "'../b.safetensors'"),
    Case("a shard's pickle", sharded({"a": "b.bin"}), CONFIG, "weight_map names 'b.bin'"),
    Case("an index", text("model.safetensors.index.json", "{}"), CONFIG, "has no weight_map"),
    Case("no layers", config(num_hidden_layers=0), CONFIG, "num_hidden_layers is 0"),
    Case("a text", config(hidden_size="128"), CONFIG, "hidden_size is '128'"),
    Case("another rope", config(rope_scaling={"type": "yarn"}), CONFIG, "'yarn'"),
)

VERIFIERS = (
    *OF_BOTH,
    Case("no config", without("config.json"), MISSING, "holds no config.json"),
    Case("no tokenizer", without("tokenizer.json"), MISSING, "no tokenizer.json"),
    Case("a bad tokenizer", text("tokenizer.json", "{}"), CONFIG, "tokenizer.json cannot be read"),
    Case("too many ids", fewer_rows, CONFIG, "has 2048 ids, vocab_size is 2047"),
    Case("a template", text("chat_template.jinja", "{% if %}"), CONFIG, "template, line 1"),
    Case("unknown", config(model_type="mixtral"), CONFIG, "model_type is 'mixtral'"),
    Case("no type", config(model_type=None), CONFIG, "model_type is None, supported are llama"),
    Case("activation", config(hidden_act="gelu"), CONFIG, "hidden_act is 'gelu'"),
    Case(
        "end of text",
        text("generation_config.json", '{"eos_token_id": 5000}'),
        CONFIG,
        "eos_token_id is 5000",
    ),
    Case("generation", text("generation_config.json", "{"), CONFIG, "generation_config.json is"),
    Case("another shape", weights(**{NORM: ONES[:127]}), CONFIG, f"{NORM} has shape [127]"),
    Case("a weight is gone", weights(**{NORM: None}), CONFIG, f"the weight {NORM} is missing"),
    Case("whole numbers", weights(**{NORM: ONES.to(torch.int8)}), CONFIG, f"{NORM} has dtype I8"),
    Case("not in the shard", sharded({NORM: "b.safetensors"}), MISSING, "'b.safetensors'"),
    Case("more layers", config(num_hidden_layers=7, layer_types=None), CONFIG, "model.layers.6."),
    Case(
        "too large",
        config(hidden_size=1 << 17, num_hidden_layers=900, layer_types=None),
        CONFIG,
        "parameters, the limit is",
    ),
)

DRAFTERS = (
    *OF_BOTH,
    Case("no config", without("config.json"), MISSING, "the folder has no config.json"),
    Case("unknown", config(architectures=["Eagle"]), CONFIG, "architectures is ['Eagle']"),
    Case("aux beyond", dflash(target_layer_ids=[1, 3, 6]), CONFIG, "target_layer_ids is [1, 3, 6]"),
    Case("aux below", dflash(target_layer_ids=[-1, 3, 5]), CONFIG, "target_layer_ids is [-1, 3"),
    Case("no aux", dflash(target_layer_ids=[]), CONFIG, "target_layer_ids is []"),
    Case("no mask id", dflash(mask_token_id=None), CONFIG, "mask_token_id is None"),
    Case("mask id", dflash(mask_token_id=2048), CONFIG, "mask_token_id is 2048"),
    Case("one row", config(block_size=1), CONFIG, "block_size is 1"),
    Case("another width", weights(fc__weight=ONES.repeat(128, 2)), CONFIG, "fc.weight has shape"),
    Case("a weight is gone", weights(fc__weight=None), CONFIG, "the weight fc.weight is missing"),
    Case("whole numbers", weights(norm__weight=ONES.to(torch.int8)), CONFIG, "has dtype I8"),
    Case("unread", weights(extra__weight=ONES), CONFIG, "the weight 'extra.weight' is none that"),
    Case("own vocabulary", config(draft_vocab_size=64), CONFIG, "lm_head.weight"),
    Case("another depth", config(num_target_layers=8), CONFIG, "num_layers is 6"),
    Case("another vocabulary", config(vocab_size=2047), CONFIG, "vocab_size is 2048, the drafter"),
    Case("f_θ's shape", narrow_maps, CONFIG, "alone of ftheta.safetensors has shape [768, 256]"),
    Case("cut f_θ", cut(1, "ftheta.safetensors"), CONFIG, "ftheta.safetensors is cut"),
)

__all__ = ["CONFIG", "DRAFTERS", "MISSING", "VERIFIERS", "Case", "weights"]
