"""A long day of a pair of nodes: `python -m tests.live.soak --requests 500 --abandoned 100`.

The tiny verifier on one node, its drafter on another; clients at once over HTTP, some of which
leave anywhere, on either node; the drafter is killed -9 and revived twice.  Whoever stays must get
what plain decoding gives; in the end nothing is held on either node, and the verifier's memory is
what it was after a warm-up.  Prints how long /health took meanwhile.
"""

# ruff: noqa: T201 - a command that prints what it found
from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil

from kakeya.cli.bench_prompts import held_out
from kakeya.embedded.models import TINY_FOLDER
from kakeya.http.scores import Spelling, TextScores
from kakeya.verifying.tokenizer import load_tokenizer
from tests.cli.nodes import NodeProcess, eventually, running_node
from tests.http.test_live import generations, get
from tests.http.test_metrics import read
from tests.live.client import hear
from tests.live.conftest import QUICK
from tests.live.promise import drafters_of
from tests.live.soak_clients import PHASES, Asked, Said, answer_of, leave

NUM_PROMPTS, LENGTHS = 8, (8, 24, 48, 96)
# A part to warm up in, two with a death of the drafter in the middle, and a last one.
NUM_PARTS = 4
# Sessions that nobody closes, because their owner has gone, end by themselves.
BRIEF = ("--session-idle", "5", "--set", "sessions.restored_s=5")
# Of what is held after the warm-up, and what an allocator takes at once.
MEMORY_SHARE, ARENA_BYTES = 0.05, 8 << 20


@dataclass
class Found:
    """What a soak found; `wrong`: answers that are not those of plain decoding."""

    num_whole: int = 0
    wrong: list[Asked] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_accepted: int = 0
    num_deaths: int = 0
    health_s: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    sessions_closed: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)

    @property
    def memory_growth(self) -> float:
        """Of the verifier's node, as a share of what it held after the warm-up."""
        return self.resident_bytes[-1] / self.resident_bytes[0] - 1

    @property
    def is_sound(self) -> bool:
        grown_bytes = self.resident_bytes[-1] - self.resident_bytes[0]
        keeps_size = grown_bytes <= MEMORY_SHARE * self.resident_bytes[0] + ARENA_BYTES
        return not self.wrong and not self.failed and keeps_size

    def health_at(self, share: float) -> float:
        """How long /health took at most in so large a share of its calls."""
        return sorted(self.health_s)[int(share * (len(self.health_s) - 1))]

    def __str__(self) -> str:
        sizes = ", ".join(f"{size / (1 << 20):.1f}" for size in self.resident_bytes)
        left = ", ".join(f"{' '.join(at)} {n}" for at, n in sorted(self.left.items()))
        return "\n".join((
            f"{self.num_whole} answers whole, {len(self.wrong)} of them wrong; "
            f"{len(self.failed)} failed; {self.num_accepted} drafts accepted",
            f"{self.left.total()} left: {left}",
            f"the drafter died {self.num_deaths} times; fallbacks {dict(self.fallbacks)}; "
            f"its sessions ended {dict(self.sessions_closed)}",
            f"verifier's node: {sizes} MiB after each part, {100 * self.memory_growth:+.1f} %",
            f"/health: median {1000 * self.health_at(0.5):.1f} ms, p99 "
            f"{1000 * self.health_at(0.99):.1f} ms, longest {1000 * self.health_at(1):.1f} ms "
            f"of {len(self.health_s)} calls",
            *(f"WRONG: {asked}" for asked in self.wrong[:5]),
            *(f"FAILED: {why}" for why in self.failed[:5]),
        ))  # fmt: skip


def plan(num_requests: int, num_abandoned: int, seed: int) -> list[Asked]:
    """`num_requests` requests in their order, of which `num_abandoned` are left."""
    rng = Random(seed)
    prompts = held_out(NUM_PROMPTS, seed=seed)
    leaving = set(rng.sample(range(num_requests), num_abandoned))
    phases = [PHASES[i % len(PHASES)] for i in range(num_abandoned)]
    rng.shuffle(phases)
    asked = []
    for number in range(num_requests):
        is_warm, prompt = rng.random() < 0.3, rng.choice(prompts)
        asked.append(
            Asked(
                number=number,
                prompt=prompt,
                max_tokens=rng.choice(LENGTHS),
                temperature=0.8 if is_warm else 0.0,
                seed=prompts.index(prompt) if is_warm else 0,
                stream=rng.random() < 0.5,
                scores=rng.random() < 0.5,
                phase=phases.pop() if number in leaving else None,
            )
        )
    return asked


class Pair:
    """`attic` verifies; `cellar` drafts, and can be killed and revived at its old port."""

    def __init__(self, home: Path) -> None:
        self._home = home
        few = ("--set", "node.max_generations=3", "--num-drafts", "4")
        self._attic = running_node(
            home, *QUICK, "--verifier", "tiny", *few, "--node-id", "attic",
            "--log-level", "warning",
        )  # fmt: skip
        self._cellar: Any = None

    def __enter__(self) -> Pair:
        self.attic: NodeProcess = self._attic.__enter__()
        self.revive("0")
        return self

    def __exit__(self, *why: Any) -> None:
        self._cellar.__exit__(None, None, None)
        self._attic.__exit__(None, None, None)

    def kill(self) -> None:
        self.cellar.kill()
        self._cellar.__exit__(None, None, None)

    def revive(self, port: str = "") -> None:
        port = port or self.cellar.grpc.rpartition(":")[2]
        self._cellar = running_node(
            self._home, *QUICK, "--verifier", "none", "--proposer", "tiny", "--node-id", "cellar",
            "--peer", self.attic.grpc, "--port", port, "--log-level", "warning", *BRIEF,
        )  # fmt: skip
        self.cellar: NodeProcess = self._cellar.__enter__()

    @property
    def addresses(self) -> dict[str, str]:
        return {"http": self.attic.http, "grpc": self.attic.grpc, "session": self.cellar.grpc}


def soak(home: Path, asked: Sequence[Asked], *, num_clients: int, seed: int) -> Found:
    """Every request answered or left, and what is wrong found.

    Raises AssertionError when something of them stays on a node.
    """
    found = Found()
    with Pair(home) as pair:
        eventually(lambda: "tiny" in drafters_of(pair.attic.grpc))
        wanted = plain_answers(pair.attic.grpc, asked)
        with measured_health(pair.attic, found):
            length = -(-len(asked) // NUM_PARTS)
            for i in range(NUM_PARTS):
                part = asked[i * length : (i + 1) * length]
                _run_part(pair, part, wanted, found, num_clients, seed, dies=0 < i < NUM_PARTS - 1)
                demand_nothing_held(pair)
                found.resident_bytes.append(
                    psutil.Process(pair.attic.process.pid).memory_info().rss
                )
        _note_metrics(pair, found)
    return found


def plain_answers(address: str, asked: Sequence[Asked]) -> dict[Asked, Said]:
    """What each request that is not left must be answered: decoded alone, without drafts."""
    known: dict[Asked, Said] = {}
    tokenizer = load_tokenizer(TINY_FOLDER / "verifier")
    spelling = Spelling(tokenizer.token_bytes(), tokenizer.special_ids)
    for each in asked:
        alone = _alone(each)
        if each.phase is None and alone not in known:
            heard = hear(
                address, text=each.prompt, raw=True, plain=True, max_tokens=each.max_tokens,
                temperature=each.temperature, seed=each.seed,
            )  # fmt: skip
            # The id that ends a text is no part of it.
            ids = [token for token in heard.ids if token not in tokenizer.eos_ids]
            spelled = TextScores(spelling).piece(ids, [None] * len(ids))
            tokens = spelled["tokens"] if ids else []
            known[alone] = Said(heard.text, heard.finish_reason, tokens)
    return known


def _alone(asked: Asked) -> Asked:
    return replace(asked, number=0, stream=False, scores=True)


def _run_part(
    pair: Pair,
    part: Sequence[Asked],
    wanted: dict[Asked, Said],
    found: Found,
    num_clients: int,
    seed: int,
    *,
    dies: bool,
) -> None:
    num_done = 0
    lock = threading.Lock()

    def ask(each: Asked) -> None:
        nonlocal num_done
        try:
            _ask(pair, each, wanted, found, Random(seed * 1_000_003 + each.number), lock)
        except (AssertionError, OSError, grpc.RpcError) as error:
            with lock:
                found.failed.append(f"{each.number} {each.phase}: {error!r}"[:300])
        with lock:
            num_done += 1

    with ThreadPoolExecutor(num_clients) as clients:
        for each in part:
            clients.submit(ask, each)
        if dies:
            eventually(lambda: num_done >= len(part) // 4)
            pair.kill()
            found.num_deaths += 1
            eventually(lambda: num_done >= len(part) // 2)
            pair.revive()
            eventually(lambda: "tiny" in drafters_of(pair.attic.grpc))


def _ask(
    pair: Pair,
    asked: Asked,
    wanted: dict[Asked, Said],
    found: Found,
    rng: Random,
    lock: threading.Lock,
) -> None:
    if asked.phase is not None:
        leave(pair.addresses, asked, rng)
        with lock:
            found.left[asked.phase] += 1
        return
    said = answer_of(pair.attic.http, asked)
    want = wanted[_alone(asked)]
    is_right = (said.text, said.finish_reason) == (want.text, want.finish_reason)
    with lock:
        found.num_whole += 1
        found.num_accepted += said.num_accepted
        if not is_right or said.tokens not in (None, want.tokens):
            found.wrong.append(asked)


def demand_nothing_held(pair: Pair) -> None:
    """Wait until no generation and no session is left on either node."""
    idle = {"running": 0, "waiting": 0}
    eventually(lambda: generations(f"http://{pair.attic.http}") == idle)
    for node in (pair.attic, pair.cellar):
        eventually(lambda node=node: metrics(node)["sessions", ""] == 0)
        assert metrics(node)["session_bytes", ""] == 0


def metrics(node: NodeProcess) -> dict[tuple[str, str], float]:
    return read(get(f"http://{node.http}", "/metrics")[1])


def _note_metrics(pair: Pair, found: Found) -> None:
    for source, name, into in (
        (pair.attic, "draft_fallbacks_total", found.fallbacks),
        (pair.cellar, "sessions_closed_total", found.sessions_closed),
    ):
        for (each, label), count in metrics(source).items():
            if each == name and count:
                into[label] = int(count)


@contextmanager
def measured_health(node: NodeProcess, found: Found) -> Iterator[None]:
    """Ask /health twenty times a second until it is left."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.05):
            started_s = time.monotonic()
            assert get(f"http://{node.http}", "/health")[0] == 200
            found.health_s.append(time.monotonic() - started_s)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        asking.join(60)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--abandoned", type=int, default=100)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    asked = plan(wanted.requests, wanted.abandoned, wanted.seed)
    with tempfile.TemporaryDirectory() as home:
        found = soak(Path(home), asked, num_clients=wanted.clients, seed=wanted.seed)
    print(found)
    return 0 if found.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
