"""`kakeya generate`: a prompt in, text or one JSON object a prompt out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from kakeya.cli.client import refusal_of
from kakeya.cli.embedded import node_stub
from kakeya.cli.flags import NodeFlags, load_command_settings
from kakeya.cli.generate_flags import GenerateFlags, request_for
from kakeya.config.settings import Settings
from kakeya.errors import Refused, demand
from kakeya.rpc.status import RpcFailedError
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub


@dataclass(slots=True)
class Outcome:
    """What one generation gave, gathered event by event."""

    ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    done: pb.Done | None = None

    def add(self, event: pb.GenerateEvent) -> None:
        self.ids.extend(event.ids)
        self.text.append(event.text)
        if event.HasField("block"):
            self.blocks.append(
                {
                    "num_drafts": event.block.num_drafts,
                    "num_accepted": event.block.num_accepted,
                    "proposer": event.block.proposer or None,
                    "drafted_on": event.block.drafted_on or None,
                }
            )
        if event.HasField("done"):
            self.done = event.done


def generate(
    prompt: str = "", *, given: GenerateFlags | None = None, flags: NodeFlags | None = None
) -> int:
    """Decode text with a node's verifier, drafting wherever the fleet can.

    Parameters
    ----------
    prompt
        The prompt; without one it is read from stdin.
    """
    asked = given or GenerateFlags()
    settings = load_command_settings(flags)
    prompts = read_prompts(prompt, asked)
    requests = [request_for(text, asked, flags or NodeFlags()) for text in prompts]
    return trio.run(_run, requests, asked, settings)


def read_prompts(prompt: str, asked: GenerateFlags) -> list[str]:
    """The prompts of one command, at least one.  Raises Refused(INVALID_ARGUMENT)."""
    sources = [bool(prompt and prompt != "-"), bool(asked.file), bool(asked.prompt_file)]
    demand(sum(sources) <= 1, "INVALID_ARGUMENT", "give one of PROMPT, --file, --prompt-file")
    if asked.prompt_file:
        lines = _read(asked.prompt_file).splitlines()
        texts = [_json_string(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    elif asked.file:
        texts = [_read(asked.file)]
    else:
        texts = [prompt if prompt and prompt != "-" else sys.stdin.read()]
    demand(bool(texts) and all(texts), "INVALID_ARGUMENT", "the prompt is empty")
    return texts


async def _run(requests: list[pb.GenerateRequest], asked: GenerateFlags, settings: Settings) -> int:
    refused: list[Refused] = []
    async with node_stub(node=asked.node, embedded=asked.embedded, settings=settings) as stub:
        try:
            for request in requests:
                await _one(stub, request, asked)
        except RpcFailedError as error:
            refused.append(refusal_of(error))
    if refused:
        raise refused[0]
    return 0


async def _one(stub: NodeServiceStub, request: pb.GenerateRequest, asked: GenerateFlags) -> None:
    outcome = await gathered(stub, request, (lambda text: None) if asked.json else _show)
    if asked.json:
        print(msgspec.json.encode(report(outcome)).decode(), flush=True)
    else:
        print(flush=True)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def gathered(
    stub: NodeServiceStub, request: pb.GenerateRequest, show: Callable[[str], None]
) -> Outcome:
    """One generation to its end; `show` gets its text as it comes.  Raises RpcFailedError."""
    outcome = Outcome()
    async with aclosing(stub.Generate(request)) as events:
        async for event in events:
            outcome.add(event)
            show(event.text)
    return outcome


def mean_acceptance_length(blocks: Sequence[Mapping[str, Any]]) -> float:
    """1 + accepted / drafted blocks; 1 where nothing was drafted."""
    drafted = [block for block in blocks if block["num_drafts"]]
    accepted = sum(block["num_accepted"] for block in drafted)
    return 1 + accepted / len(drafted) if drafted else 1.0


def report(outcome: Outcome) -> dict[str, Any]:
    """The JSON object of one generation."""
    done = outcome.done
    demand(done is not None, "UNAVAILABLE", "the node ended the stream without finishing it")
    assert done is not None
    decode_s = done.decode_s
    return {
        "ids": outcome.ids,
        "text": "".join(outcome.text),
        "finish_reason": done.finish_reason,
        "prompt_len": done.prompt_len,
        "cached_tokens": done.cached_tokens,
        "blocks": outcome.blocks,
        "mean_acceptance_length": mean_acceptance_length(outcome.blocks),
        "timings": {
            "prefill_s": done.prefill_s,
            "decode_s": decode_s,
            "tokens_per_second": len(outcome.ids) / decode_s if decode_s else 0.0,
        },
        "fallbacks": dict(done.fallbacks),
        "margin_rechecks": done.margin_rechecks,
        "model_id": done.model_id,
        "backend": done.backend,
    }


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused("INVALID_ARGUMENT", f"{name} is not UTF-8 text") from None


def _json_string(number: int, line: str) -> str:
    try:
        return msgspec.json.decode(line, type=str)
    except msgspec.DecodeError as error:
        raise Refused("INVALID_ARGUMENT", f"line {number} is not a JSON string: {error}") from None
