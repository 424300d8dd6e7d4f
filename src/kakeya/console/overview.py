"""Everything the page and `kakeya top` show, as one JSON object.  Pure but for reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kakeya.console.admission import Admission
from kakeya.console.fleet_view import node_json
from kakeya.console.scoreboard import Scoreboard
from kakeya.console.slot import ModelSlot
from kakeya.fleet.membership import Fleet


@dataclass(frozen=True, slots=True)
class SessionView:
    """Drafting sessions open here for other nodes.  closed: by how they ended."""

    num_sessions: int = 0
    num_bytes: int = 0
    closed: Mapping[str, int] | None = None


def no_sessions() -> SessionView:
    """Of a node that serves no drafter with sessions."""
    return SessionView()


@dataclass(frozen=True, slots=True)
class Overview:
    """What there is to see of one node."""

    fleet: Fleet
    slot: ModelSlot
    admission: Admission
    scoreboard: Scoreboard
    sessions: Callable[[], SessionView] = no_sessions

    def as_json(self) -> dict[str, Any]:
        """The shape of /fleet.json; `self`, `fleet_name` and `nodes` as `fleet --json` has them."""
        sessions = self.sessions()
        return {
            "self": self.fleet.node_id,
            "fleet_name": self.fleet.fleet_name,
            "nodes": [node_json(row) for row in self.fleet.nodes()],
            "verifier": self._verifier(),
            "generations": {
                "running": self.admission.num_running,
                "waiting": self.admission.num_waiting,
            },
            "sessions": {"open": sessions.num_sessions, "bytes": sessions.num_bytes},
            "speculation": speculation_json(self.scoreboard, self._plain_rate()),
        }

    def _verifier(self) -> dict[str, Any] | None:
        if not self.slot.model_id:
            return None
        ready = self.slot.ready
        return {
            "model_id": self.slot.model_id,
            "state": self.slot.state,
            "backend": ready.backend if ready is not None else None,
        }

    def _plain_rate(self) -> float | None:
        """Tokens a second of one-token steps, None while unmeasured."""
        ready = self.slot.ready
        one_s = ready.engine.pace.one_s if ready is not None else None
        return 1 / one_s if one_s else None


def speculation_json(board: Scoreboard, plain_rate: float | None) -> dict[str, Any]:
    """ratio: the latest blocks' rate over plain decoding's, null before both are known."""
    rate = board.tokens_per_second
    return {
        "tokens": board.num_ids,
        "tokens_per_second": round(rate, 2),
        "plain_tokens_per_second": None if plain_rate is None else round(plain_rate, 2),
        "ratio": round(rate / plain_rate, 3) if plain_rate and rate else None,
        "drafted_blocks": board.drafts.num_drafted_blocks,
        "drafts": board.drafts.num_drafts,
        "accepted": board.drafts.num_accepted,
        "mean_acceptance_length": round(board.mean_acceptance_length, 3),
        "acceptance_by_position": [round(share, 3) for share in board.acceptance_by_position],
    }


__all__ = ["Overview", "SessionView", "speculation_json"]
