"""The converted default model against transformers on the same GGUF file."""

from __future__ import annotations

import json
import os
import random

import pytest
from safetensors import safe_open

from kakeya.embedded.models import resolve_model
from kakeya.embedded.smollm2 import installed_gguf
from kakeya.verifying.tokenizer import load_tokenizer

pytestmark = pytest.mark.model

TEXTS = [
    "Hello, world!",
    "  leading and   inner  spaces  ",
    "tabs\tand\n\n\nlines\r\n",
    "in 1984, 3.14159 and 1,000,000; x = 12  34",
    "안녕하세요 세계, ďábelské ódy, 漢字とかな",
    "👨‍👩‍👧‍👦 e\u0301 \u200b \ufeff \U0001f3f3",
    "it's we'll I'M 'quoted' “curly” don’t",
    "def f(x):\n    return {'a': [x**2, -1]}  # ok",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "",
]
PROMPTS = ["The capital of France is", "def add(a, b):\n", "1 2 3 4 5"]


@pytest.fixture(scope="module")
def folder():
    return resolve_model("smollm2", os.environ, lambda words, fraction: None)


@pytest.fixture(scope="module")
def reference():
    """(tokenizer, model) as transformers makes them of the file itself."""
    import transformers

    path = installed_gguf()
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
    return transformers.AutoTokenizer.from_pretrained(**where), model.eval()


def test_ids_and_texts_equal_the_references(folder, reference):
    ours, theirs = load_tokenizer(folder), reference[0]
    rng = random.Random(11)
    alphabet = "ab 1 2\n\t한ďé👨‍👩‍👧'’.,_x"
    made = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(40))) for _ in range(500)]
    for text in [*TEXTS, *made]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), f"seed 11: {text!r}"
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_chat_template_renders_as_the_reference_does(folder, reference):
    chats = [
        [{"role": "user", "content": "Hi"}],
        [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hi <b>"},
            {"role": "assistant", "content": "Yo"},
            {"role": "user", "content": "안녕"},
        ],
    ]
    for chat in chats:
        expected = reference[0].apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )
        assert load_tokenizer(folder).render_chat(chat, wall=lambda: 0.0) == expected


def test_a_stream_gives_what_decode_gives_for_any_ids(folder):
    tokenizer = load_tokenizer(folder)
    for seed in range(300):
        rng = random.Random(seed)
        ids = [rng.randrange(rng.choice([300, tokenizer.vocab_size])) for _ in range(30)]
        stream = tokenizer.stream()
        text = "".join([*(stream.push([each]) for each in ids), stream.flush()])
        assert text == tokenizer.decode(ids), f"seed {seed}"


def test_every_weight_equals_the_references_bit_for_bit(folder, reference):
    expected = dict(reference[1].named_parameters())
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(expected)
        for name in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
            ours = file.get_tensor(name)
            assert ours.dtype == expected[name].dtype
            assert ours.equal(expected[name].detach()), name


def test_transformers_reads_the_folder_and_decodes_the_same_ids(folder, reference):
    import torch
    import transformers

    tokenizer, theirs = reference
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt)])
        with torch.inference_mode():
            assert ours(ids).logits.equal(theirs(ids).logits)
            options = {"max_new_tokens": 12, "do_sample": False}
            assert ours.generate(ids, **options).equal(theirs.generate(ids, **options))


def test_the_config_says_what_the_reference_reads_from_the_file(folder, reference):
    ours, theirs = json.loads((folder / "config.json").read_text()), reference[1].config.to_dict()
    same = set(ours) - {"rope_theta", "architectures", "dtype"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
