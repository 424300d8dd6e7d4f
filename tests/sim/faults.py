"""What can go wrong, how it is drawn, and what each level of simulation makes of it.

A fault that does not fit the moment (killing a node that is down) does nothing and does not count.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kakeya.drafting.ngram import NGRAM
from tests.fleet.cards import frame
from tests.sim.drafter import MODEL_ID
from tests.sim.plan import Fault, Level, Plan, Text

NAMES = ("attic", "barn", "cellar", "porch", "shed", "loft", "den", "gable")
PORTS = (50051, 50052)


class Play(Protocol):
    """What a level of simulation lets be done to its world."""

    @property
    def plan(self) -> Plan: ...
    def runs(self, name: str) -> bool: ...
    def wall(self, name: str) -> float: ...
    async def start(self, name: str, *, port: int, wipes: bool) -> None: ...
    async def kill(self, name: str) -> None: ...
    async def leave(self, name: str) -> None: ...
    async def kill_leaving(self, name: str, after_s: float) -> None: ...
    async def push(self, name: str, view: bytes, *, may_be_held: bool) -> None: ...
    async def twin(self, name: str) -> bool: ...
    async def alien(self, name: str) -> bool: ...
    def cut(self, a: str, b: str, *, one_way: bool) -> None: ...
    def isolate(self, name: str) -> None: ...
    def heal(self) -> None: ...
    def freeze(self, name: str) -> None: ...
    def slow(self, name: str, slow_s: float) -> None: ...
    def lose(self, share: float) -> None: ...
    def step_clock(self, name: str, offset_s: float) -> None: ...
    def drift_clock(self, name: str, drift: float) -> None: ...
    def lose_names(self, name: str) -> None: ...
    def fill_disk(self, name: str) -> None: ...


Strike = Callable[[Any, Fault], Awaitable[bool]]
Draw = Callable[[random.Random, tuple[str, ...]], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """How often it is drawn, with what, and what it does; `strike` says whether it did."""

    weight: int
    draw: Draw
    strike: Strike


def one(rng: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    return {"on": rng.choice(names)}


def two(rng: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    a, b = rng.sample(names, 2)
    return {"on": a, "to": b}


def with_value(values: tuple[float, ...]) -> Draw:
    return lambda rng, names: {"on": rng.choice(names), "value": rng.choice(values)}


def with_range(low: float, high: float) -> Draw:
    return lambda rng, names: {
        "on": rng.choice(names),
        "value": round(rng.uniform(low, high), 3),
    }


# ---- processes


async def kill(play: Play, fault: Fault) -> bool:
    num_up = sum(play.runs(name) for name in play.plan.names)
    if not play.runs(fault.on) or num_up <= 2:
        return False
    await play.kill(fault.on)
    return True


async def kill_all_seeds(play: Play, fault: Fault) -> bool:
    up = [name for name in play.plan.seeds if play.runs(name)]
    for name in up:
        await play.kill(name)
    return bool(up)


async def leave(play: Play, fault: Fault) -> bool:
    num_up = sum(play.runs(name) for name in play.plan.names)
    if not play.runs(fault.on) or num_up <= 2:
        return False
    await play.leave(fault.on)
    return True


async def kill_leaving(play: Play, fault: Fault) -> bool:
    """Dies while it says goodbye."""
    num_up = sum(play.runs(name) for name in play.plan.names)
    if not play.runs(fault.on) or num_up <= 2:
        return False
    await play.kill_leaving(fault.on, fault.value)
    return True


async def start(play: Play, fault: Fault) -> bool:
    if play.runs(fault.on):
        return False
    await play.start(fault.on, port=int(fault.value), wipes=False)
    return True


async def start_wiped(play: Play, fault: Fault) -> bool:
    if play.runs(fault.on):
        return False
    await play.start(fault.on, port=int(fault.value), wipes=True)
    return True


async def restart_all(play: Play, fault: Fault) -> bool:
    for name in play.plan.names:
        if play.runs(name):
            await play.kill(name)
    for name in play.plan.names:
        await play.start(name, port=PORTS[0], wipes=False)
    return True


async def twin(play: Play, fault: Fault) -> bool:
    return await play.twin(fault.on)


async def alien(play: Play, fault: Fault) -> bool:
    return not play.runs(fault.on) and await play.alien(fault.on)


# ---- links


async def cut(play: Play, fault: Fault) -> bool:
    play.cut(fault.on, fault.to, one_way=False)
    return True


async def cut_one_way(play: Play, fault: Fault) -> bool:
    play.cut(fault.on, fault.to, one_way=True)
    return True


async def isolate(play: Play, fault: Fault) -> bool:
    play.isolate(fault.on)
    return True


async def heal(play: Play, fault: Fault) -> bool:
    play.heal()
    return True


async def freeze(play: Play, fault: Fault) -> bool:
    play.freeze(fault.on)
    return True


async def slow(play: Play, fault: Fault) -> bool:
    play.slow(fault.on, fault.value)
    return True


async def lose(play: Play, fault: Fault) -> bool:
    play.lose(fault.value)
    return True


async def lose_names(play: Play, fault: Fault) -> bool:
    play.lose_names(fault.on)
    return True


async def fill_disk(play: Play, fault: Fault) -> bool:
    play.fill_disk(fault.on)
    return True


# ---- clocks


async def step(play: Play, fault: Fault) -> bool:
    play.step_clock(fault.on, fault.value)
    return True


async def drift(play: Play, fault: Fault) -> bool:
    play.drift_clock(fault.on, fault.value)
    return True


# ---- cards


def poison_cards(now_unix: float, of: str) -> list[bytes]:
    """Cards that no node may take, one of each kind."""
    return [
        frame(of, stamp=now_unix + 8 * 365 * 86400),
        frame(of, stamp=now_unix + 35),
        frame(of, stamp=math.nan),
        frame(of, stamp=math.inf),
        frame(of, stamp=-math.inf),
        frame(of, stamp=-1.0),
        frame(of, stamp=now_unix, ttl_seconds=0.0),
        frame(of, stamp=now_unix, ttl_seconds=-1.0),
        frame(of, stamp=now_unix, ttl_seconds=1e12),
        frame(of, stamp=now_unix, ttl_seconds=math.nan),
        frame("", stamp=now_unix),
        frame("x" * 4096, stamp=now_unix),
        frame(of, stamp=now_unix, models=[{"model_id": "m", "role": 2}] * 65),
        frame(of, stamp=now_unix, grpc_address="h" * 600),
        b"\x0a\x04\xff\xff\xff\xff",
    ]


async def poison(play: Play, fault: Fault) -> bool:
    if not play.runs(fault.on):
        return False
    cards = poison_cards(play.wall(fault.on), fault.to)
    await play.push(fault.on, cards[int(fault.value) % len(cards)], may_be_held=False)
    return True


async def forge(play: Play, fault: Fault) -> bool:
    """A card with another node's id that is newer than its own: an old life's, or a liar's."""
    if not play.runs(fault.on):
        return False
    now_unix = play.wall(fault.on)
    card = frame(fault.to, stamp=now_unix + fault.value, ttl_seconds=6.0, grpc_address="nowhere:1")
    await play.push(fault.on, card, may_be_held=True)
    return True


async def flood(play: Play, fault: Fault) -> bool:
    """Many cards of nodes that never were; they lapse soon."""
    if not play.runs(fault.on):
        return False
    now_unix = play.wall(fault.on)
    cards = [
        frame(f"ghost-{n}", stamp=now_unix - 1, ttl_seconds=3.0, grpc_address="nowhere:1")
        for n in range(int(fault.value))
    ]
    await play.push(fault.on, b"".join(cards), may_be_held=True)
    return True


FLEET_KINDS: dict[str, Kind] = {
    "kill": Kind(4, one, kill),
    "kill_all_seeds": Kind(1, one, kill_all_seeds),
    "leave": Kind(2, one, leave),
    "kill_leaving": Kind(2, with_value((0.0, 0.01, 0.1, 0.5)), kill_leaving),
    "start": Kind(10, with_value(tuple(map(float, PORTS))), start),
    "start_wiped": Kind(2, with_value((50051.0,)), start_wiped),
    "restart_all": Kind(1, one, restart_all),
    "twin": Kind(1, one, twin),
    "alien": Kind(2, one, alien),
    "cut": Kind(4, two, cut),
    "cut_one_way": Kind(3, two, cut_one_way),
    "isolate": Kind(2, one, isolate),
    "heal": Kind(8, one, heal),
    "freeze": Kind(3, one, freeze),
    "slow": Kind(3, with_value((0.05, 0.3, 1.5)), slow),
    "lose": Kind(3, with_value((0.0, 0.1, 0.4)), lose),
    "lose_names": Kind(2, one, lose_names),
    "fill_disk": Kind(1, one, fill_disk),
    "step": Kind(6, with_range(-3.0, 3.0), step),
    "leap": Kind(1, with_value((-600.0, -40.0, 40.0, 600.0)), step),
    "drift": Kind(2, with_value((-0.01, 0.001, 0.01)), drift),
    "poison": Kind(
        5, lambda rng, names: {**two(rng, names), "value": float(rng.randrange(15))}, poison
    ),
    "forge": Kind(
        2, lambda rng, names: {**two(rng, names), "value": round(rng.uniform(-2, 20), 3)}, forge
    ),
    "flood": Kind(1, with_value((10.0, 60.0)), flood),
}


def kinds_of(level: Level) -> dict[str, Kind]:
    return FLEET_KINDS if level == "fleet" else {**FLEET_KINDS, **NODE_KINDS}


# ---- whole nodes only


async def vanish(play: Any, fault: Fault) -> bool:
    """Power fails: nobody is told, connections stay open at the other end."""
    num_up = sum(play.runs(name) for name in play.plan.names)
    if not play.runs(fault.on) or num_up <= 2:
        return False
    await play.vanish(fault.on)
    return True


METHODS = (
    "ProposeBlock", "ExchangeCapabilities", "GetNodeCapability", "Generate", "ListDrafters",
    "Restore", "SeedContext", "ExtendContext", "DraftBlock", "CloseSession",
)  # fmt: skip


async def kill_within(play: Any, fault: Fault) -> bool:
    if not play.runs(fault.on):
        return False
    play.kill_within(fault.on, METHODS[int(fault.value)])
    return True


async def break_off(play: Any, fault: Fault) -> bool:
    play.break_off(fault.on, fault.to, int(fault.value))
    return True


async def strain_verifying(play: Any, fault: Fault) -> bool:
    if not play.runs(fault.on) or not play.is_settled(fault.on):
        return False
    play.strain(fault.on, "verifying", fault.value)
    return True


async def strain_drafting(play: Any, fault: Fault) -> bool:
    if not play.runs(fault.on) or not play.is_settled(fault.on):
        return False
    play.strain(fault.on, "drafting", fault.value)
    return True


async def strain_sessions(play: Any, fault: Fault) -> bool:
    if not play.runs(fault.on) or not play.is_settled(fault.on):
        return False
    play.strain(fault.on, "dflash", fault.value)
    return True


async def rogue(play: Any, fault: Fault) -> bool:
    started: bool = await play.start_rogue(int(fault.value))
    return started


def with_desk(rng: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    """Two ends of a connection; one of them may be where the texts are read."""
    a, b = rng.sample((*names, "desk"), 2)
    return {"on": a, "to": b}


NODE_KINDS: dict[str, Kind] = {
    "vanish": Kind(3, one, vanish),
    "kill_within": Kind(8, with_value(tuple(map(float, range(10)))), kill_within),
    "break_off": Kind(
        6,
        lambda rng, names: {**with_desk(rng, names), "value": float(rng.randrange(2000))},
        break_off,
    ),
    "strain_verifying": Kind(3, with_value((0.0, 0.2, 1.0, 1.0, 10.0)), strain_verifying),
    "strain_drafting": Kind(4, with_value((0.0, 1.0, 30.0, 300.0)), strain_drafting),
    "strain_sessions": Kind(4, with_value((0.0, 1.0, 10.0, 100.0)), strain_sessions),
    "rogue": Kind(5, with_value(tuple(map(float, range(9)))), rogue),
}


def draw_faults(
    rng: random.Random, *, level: Level, names: tuple[str, ...], storm_s: float, every_s: float
) -> tuple[Fault, ...]:
    """Faults of all kinds by their weights, one about each `every_s`."""
    kinds = kinds_of(level)
    faults, at_s = [], 0.0
    while True:
        at_s += rng.uniform(0.5, 1.5) * every_s
        if at_s >= storm_s:
            return tuple(faults)
        kind = rng.choices(list(kinds), [each.weight for each in kinds.values()])[0]
        faults.append(Fault(round(at_s, 3), kind, **kinds[kind].draw(rng, names)))


ENDINGS = ("", "death", "leave", "partition", "loss")


# A storm longer than this runs at the pace of real fleets, else ten times as fast.
LONG_STORM_S = 600.0


def draw_plan(seed: int, *, level: Level, num_nodes: int = 0, storm_s: float = 0.0) -> Plan:
    """The plan of a seed.  num_nodes, storm_s 0: as the level has them."""
    rng = random.Random(f"{seed}/plan/{level}")
    count = num_nodes or rng.choice((3, 4, 5, 5, 6, 8) if level == "fleet" else (3, 4, 5))
    names = tuple(NAMES[:count]) if count <= len(NAMES) else tuple(f"n{i}" for i in range(count))
    storm_s = storm_s or (36.0 if level == "fleet" else 20.0)
    interval_s = 10.0 if storm_s > LONG_STORM_S else 1.0
    verifiers = names[: 1 + (count > 3)] if level == "nodes" else ()
    return Plan(
        level=level,
        seed=seed,
        names=names,
        seeds=names[:2],
        verifiers=verifiers,
        storm_s=storm_s,
        interval_s=interval_s,
        ending=rng.choice(ENDINGS),
        blur=rng.choice((0.0, 0.5)),
        faults=draw_faults(
            rng, level=level, names=names, storm_s=storm_s, every_s=0.8 * interval_s
        ),
        texts=draw_texts(
            rng, names=names, verifiers=verifiers, storm_s=storm_s, every_s=1.5 * interval_s
        ),
    )


def draw_texts(
    rng: random.Random,
    *,
    names: tuple[str, ...],
    verifiers: tuple[str, ...],
    storm_s: float,
    every_s: float,
) -> tuple[Text, ...]:
    """Texts of all sorts, one about each `every_s`; a third of them is given up on the way."""
    texts, at_s = [], 1.0
    while verifiers and at_s < storm_s:
        window = rng.choice((0, 0, 16))
        texts.append(
            Text(
                at_s=round(at_s, 3),
                on=rng.choice(verifiers),
                prompt=rng.randrange(16),
                max_tokens=rng.choice((1, 5, 16, 30)),
                draft_on=rng.choice(("auto", "auto", "remote", "local", rng.choice(names))),
                num_drafts=rng.choice((0, 0, 1, 3, 7)),
                exact=rng.choice(("", "", "", "strict")),
                window=window,
                restored=bool(window) and rng.random() < 0.5,
                temperature=rng.choice((0.0, 0.0, 0.7)),
                proposer=rng.choice(("", "", NGRAM, MODEL_ID)),
                cancel_after_s=round(rng.uniform(0.0, 1.0), 3) if rng.random() < 0.3 else math.inf,
            )
        )
        at_s += rng.uniform(0.4, 1.6) * every_s
    return tuple(texts)
