"""Texts asked for over the wire, each held against what the model alone would have said (S10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import numpy as np
import trio

from kakeya.rpc.channel import Channels
from kakeya.rpc.status import RpcFailedError, status_name, status_text
from kakeya.wire.pb.kakeya.node.v1 import node_pb2 as pb
from kakeya.wire.pb.kakeya.node.v1.node_grpc import NodeServiceStub
from tests.sim.model import EOS_ID, VOCAB_SIZE, letter
from tests.sim.truth import SEED, SINK, Truth, truth
from tests.sim.violation import Violation


@dataclass(frozen=True)
class Asked:
    """One request for a text.

    window 0: all K/V; restored: banks in the place of what it evicts.  temperature 0: greedy.
    num_drafts 0: auto.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int = 40
    draft_on: str = "auto"
    num_drafts: int = 0
    plain: bool = False
    exact: str = ""
    window: int = 0
    temperature: float = 0.0
    proposer: str = ""
    restored: bool = False

    def message(self) -> pb.GenerateRequest:
        request = pb.GenerateRequest(
            prompt_ids=self.prompt_ids,
            max_tokens=self.max_tokens,
            draft_on=self.draft_on,
            num_drafts=self.num_drafts,
            plain=self.plain,
            exact=self.exact,
            temperature=self.temperature,
            seed=SEED,
            proposer=self.proposer,
        )
        if self.window:
            request.kv_mode = "restored" if self.restored else "window"
            request.kv_sink.value = SINK
            request.kv_window.value = self.window
        return request


@dataclass(eq=False)
class Generation:
    """What came of a request.  status: "" while it runs, "OK", or how it failed."""

    on: str
    asked: Asked
    ids: list[int] = field(default_factory=list)
    text: str = ""
    drafted_on: list[str] = field(default_factory=list)
    proposers: list[str] = field(default_factory=list)
    num_accepted: int = 0
    status: str = ""
    why: str = ""
    done: pb.Done | None = None
    started_s: float = 0.0
    ended_s: float = 0.0
    heard_s: list[float] = field(default_factory=list)
    # Drafts of every block, and who made them.
    blocks: list[tuple[int, str]] = field(default_factory=list)
    next_block: trio.Event = field(default_factory=trio.Event)

    @property
    def is_over(self) -> bool:
        return bool(self.status)

    def take(self, event: pb.GenerateEvent) -> None:
        """Note an event; raises Violation as soon as it says something untrue."""
        self.ids.extend(event.ids)
        self.text += event.text
        self.heard_s.append(trio.current_time())
        self.blocks.append((event.block.num_drafts, event.block.drafted_on))
        if event.block.num_drafts:
            self.drafted_on.append(event.block.drafted_on)
            self.proposers.append(event.block.proposer)
            self.num_accepted += event.block.num_accepted
        if event.HasField("done"):
            self.done = event.done
        self.demand_true()
        self.next_block.set()
        self.next_block = trio.Event()

    def demand_true(self) -> None:
        """S10: what was said so far is what plain decoding says, and the end where it ends."""
        truth = true_ids(self.asked)
        said = tuple(self.ids)
        if said != truth[: len(said)] or (self.done is not None and said != truth):
            at = next((i for i, pair in enumerate(zip(said, truth, strict=False)) if
                       pair[0] != pair[1]), min(len(said), len(truth)))  # fmt: skip
            raise Violation(
                "S10",
                f"{self.on} decoded {said[at : at + 4]} at {at} for {self.asked}, "
                f"the model alone says {truth[at : at + 4]}",
            )
        shown = "".join(letter(each) for each in said if each != EOS_ID)
        if self.text != shown:
            raise Violation("S10", f"{self.on} wrote {self.text!r} for {shown!r}")


def true_ids(asked: Asked) -> tuple[int, ...]:
    """All ids that plain decoding hands out for this request."""
    return truth_of(asked).ids


def truth_of(asked: Asked) -> Truth:
    return truth(
        asked.prompt_ids, asked.max_tokens, asked.window, asked.temperature, asked.restored
    )


async def generate(
    channels: Channels, address: str, generation: Generation, *, limit_s: float = math.inf
) -> None:
    """Run one generation to its end; how it failed is noted, an untrue id raises Violation.

    limit_s is told to the node as the call's deadline.
    """
    generation.started_s = trio.current_time()
    try:
        with trio.fail_after(limit_s):
            stub = NodeServiceStub(channels.to(address))
            async with aclosing(stub.Generate(generation.asked.message())) as events:
                async for event in events:
                    generation.take(event)
        generation.status = "OK"
        if generation.done is None:
            raise Violation("S10", f"{generation.on} ended a text without saying why")
    except RpcFailedError as error:
        generation.status, generation.why = status_name(error), status_text(error)
    except trio.TooSlowError:
        generation.status, generation.why = "TOO_SLOW", f"not over within {limit_s:g} s"
    finally:
        generation.status = generation.status or "CANCELLED"
        generation.ended_s = trio.current_time()
        generation.next_block.set()


def prompts(num: int) -> Sequence[tuple[int, ...]]:
    """Prompts of 1 to 30 ids, the same in every run so that their truth is computed once."""
    rng = np.random.default_rng(5)
    return [
        tuple(int(each) for each in rng.integers(1, VOCAB_SIZE, rng.integers(1, 31)))
        for _ in range(num)
    ]


PROMPTS = prompts(16)
