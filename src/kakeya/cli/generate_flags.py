"""The flags of `kakeya generate`, and the request they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter

from kakeya.cli.flags import NodeFlags
from kakeya.embedded.drafters import proposer_id
from kakeya.errors import Refused, demand
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb

TEXT = Group("Text")
SAMPLING = Group("Sampling")


def _flag(group: Group, text: str, **more: Any) -> Parameter:
    return Parameter(group=group, help=text, negative="", show_default=True, **more)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerateFlags:
    max_tokens: Annotated[int, _flag(TEXT, "Most tokens to decode.")] = 256
    stop: Annotated[tuple[str, ...], _flag(TEXT, "Text that ends it; repeatable.")] = ()
    raw: Annotated[bool, _flag(TEXT, "Send the prompt as it is, without chat template.")] = False
    plain: Annotated[bool, _flag(TEXT, "Decode without speculation.")] = False
    json: Annotated[bool, _flag(TEXT, "Print one JSON object a prompt instead of text.")] = False
    file: Annotated[str | None, _flag(TEXT, "Read the prompt from this file.")] = None
    prompt_file: Annotated[str | None, _flag(TEXT, "Many prompts: one JSON string a line.")] = None
    temperature: Annotated[float, _flag(SAMPLING, "0 is greedy.")] = 0.0
    top_p: Annotated[float, _flag(SAMPLING, "Nucleus; 1 keeps all.")] = 1.0
    top_k: Annotated[int, _flag(SAMPLING, "Candidates kept; 0 keeps all.")] = 0
    min_p: Annotated[float, _flag(SAMPLING, "Least share of the best candidate.")] = 0.0
    repetition_penalty: Annotated[
        float, _flag(SAMPLING, "Logits of what was said are divided by it; 1 changes nothing.")
    ] = 1.0
    frequency_penalty: Annotated[
        float, _flag(SAMPLING, "Taken off a logit for every time its token was decoded.")
    ] = 0.0
    presence_penalty: Annotated[
        float, _flag(SAMPLING, "Taken off the logits of tokens that were decoded.")
    ] = 0.0
    logit_bias: Annotated[
        tuple[str, ...], _flag(SAMPLING, "ID=VALUE, added to a token's logit; repeatable.")
    ] = ()
    seed: Annotated[int, _flag(SAMPLING, "Noise seed.")] = 0
    node: Annotated[str | None, _flag(TEXT, "HOST:PORT of the node to ask.")] = None
    embedded: Annotated[bool, _flag(TEXT, "Run a node in this process.")] = False


def chosen_proposer(flags: NodeFlags) -> str:
    """The model whose drafts are asked for: what --proposer names, "" for any.  Raises Refused."""
    given = flags.proposer or ()
    demand(len(given) <= 1, "INVALID_ARGUMENT", "give one --proposer: whose drafts are used")
    return proposer_id(given[0]) if given else ""


def request_for(text: str, asked: GenerateFlags, flags: NodeFlags) -> pb.GenerateRequest:
    num_drafts = flags.num_drafts if flags.num_drafts not in (None, "auto") else "0"
    demand(
        str(num_drafts).isdigit(), "INVALID_ARGUMENT", f"--num-drafts is {num_drafts!r}, auto or N"
    )
    demand(asked.max_tokens >= 1, "INVALID_ARGUMENT", f"--max-tokens is {asked.max_tokens}, ≥ 1")
    demand(asked.top_k >= 0, "INVALID_ARGUMENT", f"--top-k is {asked.top_k}, it must be ≥ 0")
    for name, value in (("--sink", flags.sink), ("--window", flags.window)):
        demand(
            value is None or 0 <= value < 1 << 32,
            "INVALID_ARGUMENT",
            f"{name} is {value}, it must be at least 0 and below 2^32",
        )
    demand(
        asked.repetition_penalty > 0,
        "INVALID_ARGUMENT",
        f"--repetition-penalty is {asked.repetition_penalty}, it must be above 0",
    )
    demand(0 <= asked.seed < 1 << 64, "INVALID_ARGUMENT", f"--seed is {asked.seed}, 0 … 2^64-1")
    return pb.GenerateRequest(
        text=text,
        raw=asked.raw,
        max_tokens=min(asked.max_tokens, (1 << 32) - 1),
        stop=asked.stop,
        plain=asked.plain,
        draft_on=flags.draft_on or "",
        proposer=chosen_proposer(flags),
        num_drafts=int(num_drafts or 0),
        kv_mode=flags.kv or "",
        kv_sink=_count(flags.sink),
        kv_window=_count(flags.window),
        exact=flags.exact or "",
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed,
        repetition_penalty=asked.repetition_penalty,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        logit_bias=dict(map(_bias, asked.logit_bias)),
    )


def _count(value: int | None) -> pb.Count | None:
    return None if value is None else pb.Count(value=value)


def _bias(given: str) -> tuple[int, float]:
    token_id, _, value = given.partition("=")
    is_id = token_id.isascii() and token_id.isdigit() and len(token_id) <= 9
    try:
        if is_id:
            return int(token_id), float(value)
    except ValueError:
        pass
    raise Refused(
        "INVALID_ARGUMENT", f"--logit-bias is {given!r}, it must be ID=VALUE with a token's id"
    )
