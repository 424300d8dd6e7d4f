"""Plants faults in the product, one at a time in a copy of it, and says which test notices.

just mutants            all of them
just mutants --only S   those whose name or file holds S

Each is a replacement of text; the simulation's own tests are run first, then the unit tests named.
A fault that nothing notices is a hole in the tests: the command ends with 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
GOSSIP = (
    "tests/sim/test_gossip_cases.py",
    "tests/sim/test_seeds.py",
    "-k",
    "not whole_nodes and not hundreds",
)
NODES = ("tests/sim/test_node_cases.py", "tests/sim/test_nodes.py")
SESSIONS = ("tests/sim/test_session_cases.py",)
STORM = ("tests/sim/test_seeds.py", "-k", "whole_nodes")
EXPIRY = ("tests/sim/test_expiry.py",)


@dataclass(frozen=True)
class Mutant:
    """`runs` are pytest argument lists, tried in this order until one fails."""

    what: str
    path: str
    old: str
    new: str
    runs: tuple[tuple[str, ...], ...]


def fleet(what: str, name: str, old: str, new: str, *units: str) -> Mutant:
    unit_runs = tuple((f"tests/fleet/{unit}.py",) for unit in units)
    return Mutant(what, f"src/kakeya/fleet/{name}.py", old, new, (EXPIRY, GOSSIP, *unit_runs))


def node(what: str, path: str, old: str, new: str, *units: str) -> Mutant:
    unit_runs = tuple((unit,) for unit in units)
    return Mutant(what, f"src/kakeya/{path}.py", old, new, (NODES, STORM, *unit_runs))


def session(what: str, path: str, old: str, new: str, *units: str) -> Mutant:
    unit_runs = tuple((unit,) for unit in units)
    return Mutant(what, f"src/kakeya/{path}.py", old, new, (SESSIONS, STORM, *unit_runs))


MUTANTS = (
    # ---- cards and views
    fleet("cards from the future are taken", "card",
          "if stamp > now_unix + limits.max_ahead_s:", "if False:", "test_card"),
    fleet("a lifetime of any length is taken", "card",
          "if not 0 < ttl_s <= limits.max_ttl_s:", "if not 0 < ttl_s:", "test_card"),
    fleet("stamps that are no numbers are taken", "card",
          "if not math.isfinite(stamp):", "if False:", "test_card"),
    fleet("cards outlive their lifetime by a second", "card",
          "return now_unix > self.announced_at_unix + self.offer.ttl_s",
          "return now_unix > self.announced_at_unix + self.offer.ttl_s + 1"),
    fleet("on equal stamps whoever came last wins", "card",
          "return _tie_key(card) > _tie_key(held)", "return True", "test_registry"),
    fleet("the older stamp wins", "card",
          "return card.announced_at_unix > held.announced_at_unix",
          "return card.announced_at_unix < held.announced_at_unix"),
    fleet("a node_id of any length is taken", "card",
          "if not 0 < id_bytes <= limits.max_node_id_bytes:", "if False:", "test_card"),
    fleet("dropped cards come back as ghosts", "registry",
          "if gone is not None and card.announced_at_unix <= gone.announced_at_unix:",
          "if False:", "test_registry"),
    fleet("no card is ever swept", "registry",
          "if now_unix <= self._first_end_unix and self._last_stamp_unix <= latest:", "if True:"),
    fleet("incredible cards are kept when our clock is set back", "registry",
          "ahead = [c for c in self._cards.values() if c.announced_at_unix > latest]",
          "ahead = []"),
    fleet("any number of cards is held", "registry",
          "is_full = held is None and len(self._cards) >= self._limits.max_cards - 1",
          "is_full = False", "test_registry"),
    fleet("expired cards are merged", "registry",
          "if card.is_expired(now_unix):\n            return Bad",
          "if False:\n            return Bad", "test_registry"),
    fleet("a re-announced card is taken though it is older", "registry",
          "if not held.announced_at_unix < stamp <= latest or newer.is_expired(now_unix):",
          "if stamp > latest or newer.is_expired(now_unix):"),
    fleet("freed bytes are not counted", "registry",
          "self._held_bytes -= len(card.frame)", "pass"),
    # ---- our own card
    fleet("a stamp of an earlier life is forgotten", "own",
          "(persisted, STEP_S),", "", "test_own"),
    fleet("own stamps run away", "own", "return min(max([now_unix, *wanted]), latest)",
          "return max([now_unix, *wanted])", "test_own"),
    fleet("stamps of a wrong clock are kept up with", "own",
          "for stamp, ahead_s in floors if stamp <= believed]", "for stamp, ahead_s in floors]"),
    fleet("a newer card with our id is not outbid", "own",
          "        self._bid_at_unix = now_unix\n        self._seen_unix",
          "        return False\n        self._seen_unix"),
    fleet("two nodes of one id bid for ever", "own",
          "if not outbids or (was_in_conflict and since_bid_s < self._offer.ttl_s):",
          "if not outbids:", "test_own"),
    fleet("a second node with our id is listened for at one tick in five only", "gossip",
          "listens = listens or self._own.is_contested(self._around.wall())", "pass",
          "test_gossip"),
    fleet("the last card lives as long as any", "own",
          "self._offer = replace(self._offer, models=(), ring_address=\"\", ttl_s=ttl_s)",
          "self._offer = replace(self._offer, models=(), ring_address=\"\")",
          "test_gossip"),
    # ---- the ticker
    fleet("seeds are called only while alone", "peers",
          "if rng.random() < probability:", "if rng.random() < probability and not who.live:",
          "test_peers"),
    fleet("remembered addresses are never called", "peers",
          "    if who.dead:", "    if False:", "test_peers"),
    fleet("nobody is called at a tick", "peers",
          "        chosen.append(rng.choice(who.live))", "        pass"),
    fleet("the calls of a tick stand in line", "gossip",
          "nursery.start_soon(self._contained, target, before if n == 0 else b\"\")",
          "await self._contained(target, before if n == 0 else b\"\")", "test_gossip"),
    fleet("the last stamp is not saved", "gossip",
          "nursery.start_soon(self.persist)", "pass", "test_gossip"),
    fleet("a stranger at a peer's address gets our view", "gossip",
          "if target.node_id not in (\"\", claim.node_id):", "if False:", "test_gossip"),
    fleet("our card is not stamped anew at a tick", "gossip",
          "        self._own.issue(self._around.wall())\n        async with",
          "        async with"),
    fleet("a call to a peer may take for ever", "gossip",
          "with trio.fail_after(self._limits.exchange_deadline_s):",
          "with trio.fail_after(3600):"),
    fleet("every fleet is ours", "service",
          "theirs == [fleet_name],", "True,", "test_service"),
    node("connections from an old address are kept", "fleet/gossip",
         "            self._around.calls.drop_connections()\n", ""),
    # ---- decoding
    node("what was rejected stays in the K/V", "decoding/verify",
         "        verifier.trim(kv, start + 1 + accepted)", "        pass"),
    node("one draft too many is accepted", "verifying/accept",
         "        if draft != choices[i]:\n            return i",
         "        if draft != choices[i]:\n            return min(i + 1, len(drafts))"),
    node("doubtful rows are not decided again", "decoding/verify",
         "    if doubtful is not None:", "    if False:"),
    node("a doubtful row is decided with the rows behind it in the K/V", "decoding/verify",
         "        verifier.trim(kv, start + doubtful)", "        pass"),
    node("ids the verifier does not know are fed to it", "decoding/source",
         "return len(ids) == num_drafts and all(0 <= each < vocab_size for each in ids)",
         "return len(ids) == num_drafts"),
    node("drafts of any number are taken", "decoding/source",
         "return len(ids) == num_drafts and all(", "return bool(ids) and all("),
    node("a stop id inside a block does not end it", "decoding/loop",
         "        if each in stop_ids:\n            return tuple(ids[: i + 1]), True",
         "        if each in stop_ids and i == len(ids) - 1:\n"
         "            return tuple(ids[: i + 1]), True", "tests/decoding/test_loop.py"),
    node("a circuit never closes again", "decoding/failover",
         "        return now_s >= self.probe_at_s", "        return not self.failures"),
    node("late drafts are waited for", "decoding/drafting",
         "with trio.move_on_after(self._max_wait_s()):", "with trio.move_on_after(60):"),
    node("a failed draft is not replaced", "decoding/drafting",
         "        if drafted.ids or not self.local.match_len:\n            return drafted\n",
         "        return drafted\n", "tests/decoding/test_failover.py"),
    node("noise of a seed depends on the block", "decoding/verify",
         "choices = sampler.choose(rows, first_position=start + 1, bound=bound, ahead=drafts)",
         "choices = sampler.choose(rows, first_position=1, bound=bound, ahead=drafts)"),
    # ---- sessions
    session("rows of rejected drafts are kept as aux", "decoding/verify",
            "        aux=tuple(layer[kept] for layer in rows.aux),", "        aux=rows.aux,"),
    session("a context is written a position too late", "drafting/machine",
            "_write, tools.drafter, context, context_len + first, aux, first, last",
            "_write, tools.drafter, context, context_len + first + (context is not None), aux, "
            "first, last"),
    session("a draft that lies behind the context is served", "drafting/machine",
            "        request.context_len == state.context_len,\n", "        True,\n",
            "tests/drafting/test_machine.py"),
    session("a session waits for ever", "drafting/owner",
            "ticket = await self._desk.next(state, until)",
            "ticket = await self._desk.next(state, ends_at)"),
    session("sessions of a text that is over are kept", "decoding/holding",
            "        if held is not None:\n            held.release()", "        pass"),
    session("any number of sessions is open", "drafting/sessions",
            "                num < most,\n", "                True,\n"),
    session("a lost session is never opened again", "decoding/failover",
            "return self.is_closed or now_s >= self.probe_at_s or heard_unix > self.heard_unix > 0",
            "return not self.failures"),
    session("a session that ended keeps its bytes", "drafting/sessions",
            "            room.settle(0)\n", "            pass\n"),
    # ---- calls and connections
    node("a handler outlives its caller", "rpc/endpoint",
         "                stream.scope = scope\n", ""),
    node("deadlines are not kept", "rpc/endpoint",
         "with trio.CancelScope(deadline=call.deadline) as scope:",
         "with trio.CancelScope() as scope:"),
    node("bytes of messages are not given back", "rpc/wire",
         "            self.budget.give(stream.held_bytes)\n", ""),
    node("silence of a peer is not noticed", "rpc/watch",
         "    if connection.streams and silent_s > connection.limits.keepalive_s:",
         "    if False:"),
    node("a lost connection is not dialled anew", "rpc/channel",
         "        if connection is None or connection.closed is not None or connection.is_going:",
         "        if connection is None:"),
    node("the place of a generation is not given back", "console/admission",
         "        async with self._places:\n            yield",
         "        await self._places.acquire()\n        yield"),
    # ---- the node
    node("a stopping node does not say goodbye", "node/run",
         "        await parts.fleet.leave()", "        pass"),
    node("a stopping node waits for its last generation for ever", "node/run",
         "with trio.move_on_after(limits.drain_s):", "with trio.move_on_after(3600):"),
    node("a stopping node waits for peers whose power failed", "rpc/wire",
         "self.ping_sent_at = min(self.ping_sent_at, trio.current_time())", "pass"),
    node("a made-up name is forgotten", "node/run",
         "        await store.save(replace(saved, node_id=node_id",
         "        await store.save(replace(saved, node_id=\"\""),
)  # fmt: skip


def main(argv: list[str]) -> int:
    asked = parser().parse_args(argv)
    chosen = [m for m in MUTANTS if asked.only in m.what or asked.only in m.path]
    survivors, started_s = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kakeya-mutants-") as folder:
        copy = Path(folder)
        for name in ("src", "tests", "specs", "pyproject.toml"):
            copied(ROOT / name, copy / name)
        for n, mutant in enumerate(chosen, 1):
            caught = caught_by(mutant, copy)
            if not caught:
                survivors.append(mutant.what)
            say(f"{n:2} of {len(chosen)}  {mutant.what}: {caught or 'NOT NOTICED'}")
    say(f"{len(chosen) - len(survivors)} of {len(chosen)} planted faults were noticed, "
        f"{time.monotonic() - started_s:.0f} s")  # fmt: skip
    return 1 if survivors else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="just mutants", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--only", default="", help="a part of a name or file")
    return made


def copied(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    else:
        shutil.copy(source, target)


def caught_by(mutant: Mutant, copy: Path) -> str:
    """The first test that fails with the fault planted, "" when none does."""
    path = copy / mutant.path
    sound = path.read_text()
    assert sound.count(mutant.old) == 1, (mutant.what, sound.count(mutant.old))
    path.write_text(sound.replace(mutant.old, mutant.new))
    try:
        for run in mutant.runs:
            failed = first_failure(run, copy)
            if failed:
                return failed
    finally:
        path.write_text(sound)
    return ""


def first_failure(arguments: tuple[str, ...], copy: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s of {arguments[0]}"
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found.group(1).removeprefix("tests/") if found else f"pytest ended {done.returncode}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
