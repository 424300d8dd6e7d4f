"""One node with a small model behind its HTTP door, and the clients that tests speak to it with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from tests.cli.nodes import NodeProcess, running_node
from tests.live.checkpoint import write_folder

# As SmolLM2's, without special tokens: what a conversation becomes is plain to see.
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CONFIG = {"eos_token": "<|end|>", "chat_template": TEMPLATE}


@dataclass(frozen=True)
class Door:
    """A node and the openai client to it."""

    node: NodeProcess
    client: openai.OpenAI
    home: Path
    model: str = "tiny"

    @property
    def base(self) -> str:
        return f"http://{self.node.http}"


def client_of(node: NodeProcess, **options) -> openai.OpenAI:
    given = {"api_key": "none-is-asked-for", "max_retries": 0, "timeout": 60} | options
    return openai.OpenAI(base_url=f"http://{node.http}/v1", **given)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    made = write_folder(tmp_path_factory.mktemp("http") / "tiny", seed=4)
    (made / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return made


@pytest.fixture(scope="session")
def door(tiny, tmp_path_factory):
    home = tmp_path_factory.mktemp("door")
    with (
        running_node(home, "--verifier", str(tiny), "--node-id", "attic") as node,
        client_of(node) as client,
    ):
        yield Door(node, client, home)
