"""A door in memory: the real server, routes and loop, a toy verifier, and mock time.

The toy's vocabulary is the letters a … x, so every id is one character of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import h11
import numpy as np
import trio
import trio.testing
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from kakeya.config.http import HttpLimits
from kakeya.config.settings import Settings
from kakeya.config.text import TextLimits
from kakeya.console.admission import Admission
from kakeya.console.generations import Generations
from kakeya.console.overview import Overview
from kakeya.console.slot import ModelSlot, Ready
from kakeya.decoding.failover import Circuits, Peers
from kakeya.fleet.membership import NodeRow
from kakeya.http.access import Access
from kakeya.http.app import App
from kakeya.http.connections import Connections
from kakeya.http.routes import Door, routes_of
from kakeya.metrics import Metrics
from kakeya.verifying.chat import ChatTemplate
from kakeya.verifying.tokenizer import Tokenizer
from tests.decoding.toy import VOCAB_SIZE, ToyVerifier, cpu_step_s, engine_for, rough_table

LETTERS = "abcdefghijklmnopqrstuvwx"
assert len(LETTERS) == VOCAB_SIZE
MODEL = "toy"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
ANYBODY = Access(api_key="", origins=(), is_local=True)


def letters_tokenizer(eos_ids: tuple[int, ...] = ()) -> Tokenizer:
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(
        backend=backend,
        vocab_size=VOCAB_SIZE,
        eos_ids=eos_ids,
        bos_token="",
        eos_token="",
        special_ids=frozenset(),
        template=ChatTemplate(TEMPLATE, TextLimits()),
    )


@dataclass
class FakeFleet:
    """What an overview asks a fleet for."""

    node_id: str = "attic"
    fleet_name: str = "kakeya"
    rows: list[NodeRow] = field(default_factory=list)

    def nodes(self) -> list[NodeRow]:
        return self.rows


@dataclass(slots=True)
class World:
    """One door that never listens: clients are handed in."""

    connections: Connections
    nursery: trio.Nursery
    slot: ModelSlot
    admission: Admission
    verifier: ToyVerifier
    ready: Ready
    metrics: Metrics
    fleet: FakeFleet
    is_serving: bool = True

    def client(self) -> Client:
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.connections.serve, theirs, "here")
        return Client(ours)


@asynccontextmanager
async def world(
    *,
    table: np.ndarray | None = None,
    step_s: Callable[[int], float] = cpu_step_s,
    limits: HttpLimits | None = None,
    settings: Settings | None = None,
    access: Access = ANYBODY,
    eos_ids: tuple[int, ...] = (),
    is_loaded: bool = True,
    **verifier: Any,
):
    """A door to a toy verifier; its `table` says what follows what."""
    settings, limits = settings or Settings(), limits or HttpLimits()
    metrics = Metrics(version="test")
    toy = ToyVerifier(rough_table(1) if table is None else table, **verifier)
    engine = engine_for(toy, step_s, kept_prefixes=settings.kept_prefixes)
    ready = Ready(engine, letters_tokenizer(eos_ids))
    slot = ModelSlot(MODEL)
    if is_loaded:
        slot.fill(ready)
    admission = Admission(
        max_running=settings.node.max_generations,
        max_waiting=settings.node.max_waiting_generations,
    )
    generations = Generations(
        settings=settings,
        slot=slot,
        peers=Peers(tuple, None, Circuits(engine.limits)),  # type: ignore[arg-type]
        admission=admission,
        wall=lambda: 1e9,
        note_speed=lambda speed: None,
        metrics=metrics,
    )
    async with trio.open_nursery() as nursery:
        made: list[World] = []
        fleet = FakeFleet()
        overview = Overview(fleet, slot, admission, generations.scoreboard)  # type: ignore[arg-type]
        door = Door(
            generations=generations,
            overview=overview,
            metrics=metrics,
            slot=slot,
            limits=limits,
            wall=lambda: 1e9,
            rng=Random(1),
            is_serving=lambda: made[0].is_serving,
            started_unix=5.0,
        )
        app = App(routes_of(door), access, Random(2), limits.retry_after_s)
        connections = Connections(app.handle, limits)
        made.append(World(connections, nursery, slot, admission, toy, ready, metrics, fleet))
        yield made[0]
        nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Heard:
    """One answer, whole."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The server-sent events; the last one as its text."""
        blocks = [each for each in self.body.decode().split("\n\n") if each.startswith("data: ")]
        return [each[6:] if each == "data: [DONE]" else json.loads(each[6:]) for each in blocks]


class Client:
    """One connection, request by request."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)

    async def send(
        self, method: str, path: str, body: Any = None, fields: dict[str, str] | None = None
    ) -> None:
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        named = {"host": "localhost", "content-length": str(len(raw))} | (fields or {})
        request = h11.Request(
            method=method, target=path, headers=[(n, v.encode("latin-1")) for n, v in named.items()]
        )
        data = (self._h11.send(request) or b"") + (self._h11.send(h11.Data(data=raw)) or b"")
        await self.stream.send_all(data + (self._h11.send(h11.EndOfMessage()) or b""))

    async def event(self) -> Any:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._h11.receive_data(await self.stream.receive_some(65536))
        return event

    async def answer(self) -> Heard:
        """The next answer; raises h11.RemoteProtocolError when the connection ends within it."""
        head = await self.event()
        while isinstance(head, h11.InformationalResponse):
            head = await self.event()
        assert isinstance(head, h11.Response), head
        body = b""
        while isinstance(event := await self.event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage), event
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        fields = {name.decode(): value.decode() for name, value in head.headers}
        return Heard(head.status_code, fields, body)

    async def ask(self, *args: Any, **more: Any) -> Heard:
        await self.send(*args, **more)
        return await self.answer()

    async def chat(self, **fields: Any) -> Heard:
        return await self.ask("POST", "/v1/chat/completions", chat_body(**fields))

    async def complete(self, **fields: Any) -> Heard:
        body = {"prompt": "abc", "temperature": 0, "max_tokens": 8} | fields
        return await self.ask("POST", "/v1/completions", body)

    async def leave(self) -> None:
        await trio.aclose_forcefully(self.stream)


def chat_body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "abc"}]
    return {"messages": messages, "temperature": 0, "max_tokens": 8} | fields
