"""What must be back at zero: in a node that has nothing to do (S8), and of one that stopped (S9).

And what may not last: a call whose deadline has passed (S11).
"""

from __future__ import annotations

import trio

from kakeya.node.parts import Parts
from tests.sim.logs import who
from tests.sim.nodes import NodeWorld, SimNode
from tests.sim.oracle import demand

# One job of a strained device, and the answer's way into the queue.
GRACE_S = 1.5


def busy_with(node: SimNode) -> dict[str, int]:
    """What a node still does or holds for its callers, gossip included; empty when nothing."""
    parts = parts_of(node)
    held = {
        "generations": parts.admission.num_running,
        "waiting generations": parts.admission.num_waiting,
        "calls": parts.endpoint.num_calls,
        "message bytes": parts.endpoint.held_bytes,
        "jobs": sum(device.num_waiting for device in node.devices.values()),
        **drafting_sessions(parts),
    }
    return {what: count for what, count in held.items() if count}


def drafting_sessions(parts: Parts) -> dict[str, int]:
    """Open DFlash sessions, the bytes they have reserved, and those held on other nodes."""
    counts = parts.dflash.sessions.counts()
    return {
        "sessions": counts.num_sessions,
        "session bytes": counts.num_bytes,
        "sessions elsewhere": parts.keeper._num_held,
    }


def parts_of(node: SimNode) -> Parts:
    assert node.running is not None
    return node.running.parts


def demand_nothing_left(world: NodeWorld, node: SimNode) -> None:
    """S9, right after a node said that it has stopped."""
    demand(node.error is None, "S9", f"{node.name} ended in {node.error!r}")
    left = [task.name for task in tasks_of(node.name)]
    demand(not left, "S9", f"{node.name} has stopped, its tasks {left[:3]} run on")
    demand(
        node.num_left_open == 0,
        "S9",
        f"{node.name} has stopped with {node.num_left_open} connections open",
    )
    held = busy_with(node)
    demand(not held, "S9", f"{node.name} has stopped and holds {held}")


def tasks_of(name: str) -> list[trio.lowlevel.Task]:
    """All tasks that run on behalf of a node."""
    root = trio.lowlevel.current_root_task()
    found, waiting = [], [] if root is None else [root]
    while waiting:
        task = waiting.pop()
        if task.context.get(who) == name:
            found.append(task)
        for nursery in task.child_nurseries:
            waiting.extend(nursery.child_tasks)
    return found


def demand_deadlines(node: SimNode) -> None:
    """S11: no call runs on after its deadline but for the job it is in."""
    if node.running is None:
        return
    now_s = trio.current_time()
    for connection in parts_of(node).endpoint._connections:
        for stream in connection.streams.values():
            scope = stream.scope
            late_s = now_s - scope.deadline if scope is not None else 0.0
            demand(late_s <= GRACE_S, "S11", f"{node.name} serves a call {late_s:.2f} s too long")
