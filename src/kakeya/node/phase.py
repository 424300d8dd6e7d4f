"""The node's own small machine: Starting → Serving → Draining → Stopped.

Spec: specs/node.md.  Pure: run.py acts on what this decides.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    STARTING = "Starting"
    SERVING = "Serving"
    DRAINING = "Draining"
    STOPPED = "Stopped"


class Event(Enum):
    LISTENING = "Listening"  # every listener is open
    STOP_ASKED = "StopAsked"  # the first or a further SIGTERM or SIGINT
    DRAINED = "Drained"  # nothing runs any more, or the drain limit is over
    FAILED = "Failed"  # an error escaped a task that may not fail


TABLE: dict[tuple[Phase, Event], Phase] = {
    (Phase.STARTING, Event.LISTENING): Phase.SERVING,
    (Phase.STARTING, Event.STOP_ASKED): Phase.STOPPED,
    (Phase.STARTING, Event.FAILED): Phase.STOPPED,
    (Phase.SERVING, Event.STOP_ASKED): Phase.DRAINING,
    (Phase.SERVING, Event.FAILED): Phase.STOPPED,
    (Phase.DRAINING, Event.STOP_ASKED): Phase.STOPPED,
    (Phase.DRAINING, Event.DRAINED): Phase.STOPPED,
    (Phase.DRAINING, Event.FAILED): Phase.STOPPED,
}


def after(phase: Phase, event: Event) -> Phase:
    """The phase `event` leads to.  Any other pair is our own mistake."""
    assert (phase, event) in TABLE, (phase, event)
    return TABLE[phase, event]
