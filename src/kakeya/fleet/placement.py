"""Whom to ask for drafts: the same plan on every node that has the same view.

Pure; knows cards and what cannot be reached from here, nothing of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kakeya.errors import Refused
from kakeya.fleet.card import ROLE_PROPOSER, ROLE_VERIFIER, Card, Model

ROLE_NAMES = {ROLE_VERIFIER: "verifier", ROLE_PROPOSER: "proposer", 3: "embedder", 4: "tool"}
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Choice:
    """A node and the model of it that would be asked."""

    node_id: str
    grpc_address: str
    model: Model
    memory_bytes: int
    is_self: bool
    announced_at_unix: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices, best first, and one line for every node on why it is where it is."""

    choices: tuple[Choice, ...]
    lines: tuple[str, ...]


class NobodyQualifies(Refused):
    """No node can be asked; `why` names what was missing, `lines` explain node by node."""

    def __init__(self, why: str, lines: tuple[str, ...]) -> None:
        super().__init__("NOT_FOUND", why)
        self.lines = lines


def accepts_all(model: Model) -> bool:
    """For callers to whom every model of the role is as good."""
    return True


def no_preference(grpc_address: str, model: Model) -> int:
    """For callers to whom only speed counts."""
    return 0


def plan(
    cards: Iterable[Card],
    *,
    role: int,
    model_id: str,
    self_node_id: str,
    unreachable: Collection[str],
    now_unix: float,
    accepts: Callable[[Model], bool],
    prefers: Callable[[str, Model], int] = no_preference,
) -> Plan:
    """Order the live nodes that offer `model_id` in `role`; "" stands for any model.

    `unreachable` holds node_ids that do not answer from here; `accepts` says which models' drafts
    the verifier can use; `prefers` gives a rank to an address's model, lower ones go first.  Then
    faster first, then larger memory, then node_id; other nodes before ourselves.  Raises
    NobodyQualifies.
    """
    live = sorted((c for c in cards if not c.is_expired(now_unix)), key=lambda c: c.node_id)
    found: list[Choice] = []
    misses: list[str] = []
    num_offering = 0
    for card in live:
        model = _best(card, role, model_id, accepts, prefers)
        num_offering += isinstance(model, Model)
        if isinstance(model, str):
            misses.append(f"{card.node_id}: {model}")
        elif card.node_id in unreachable:
            misses.append(
                f"{card.node_id}: offers {model.model_id} at {card.offer.grpc_address}; "
                "seen, not reachable from here"
            )
        else:
            is_self = card.node_id == self_node_id
            offer = card.offer
            found.append(
                Choice(
                    offer.node_id,
                    offer.grpc_address,
                    model,
                    offer.memory_bytes,
                    is_self,
                    card.announced_at_unix,
                )
            )
    found.sort(key=lambda choice: _rank(choice, prefers))
    lines = tuple(_line(n, choice) for n, choice in enumerate(found, 1)) + tuple(misses)
    if not found:
        raise NobodyQualifies(_missing(live, role, model_id, num_offering), lines)
    return Plan(tuple(found), lines)


def _rank(
    choice: Choice, prefers: Callable[[str, Model], int]
) -> tuple[bool, int, float, int, str]:
    preference = prefers(choice.grpc_address, choice.model)
    speed = choice.model.tokens_per_second
    return choice.is_self, preference, -speed, -choice.memory_bytes, choice.node_id


def _best(
    card: Card,
    role: int,
    model_id: str,
    accepts: Callable[[Model], bool],
    prefers: Callable[[str, Model], int],
) -> Model | str:
    """The most preferred, then fastest fitting model of the card, or what it lacks."""
    of_role = [m for m in card.offer.models if m.role == role]
    if not of_role:
        return f"offers no {role_name(role)}"
    named = [m for m in of_role if model_id in ("", m.model_id)]
    if not named:
        return f"offers {_names(of_role)}, not {model_id}"
    fitting = [m for m in named if accepts(m)]
    if not fitting:
        return f"offers {_names(named)}, which does not fit the verifier"
    address = card.offer.grpc_address
    return min(
        fitting,
        key=lambda m: (prefers(address, m), -m.tokens_per_second, m.model_id, m.quantization),
    )


def _names(models: Iterable[Model]) -> str:
    names = sorted({m.model_id for m in models})
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _line(place: int, choice: Choice) -> str:
    speed = choice.model.tokens_per_second
    measured = f"{speed:.1f} tokens/s" if speed else "unmeasured"
    memory = f"{choice.memory_bytes / GIB:.1f} GiB"
    last = "; this node itself, only when no other can" if choice.is_self else ""
    return (
        f"{place}. {choice.node_id} at {choice.grpc_address}: {choice.model.model_id}, "
        f"{measured}, {memory}{last}"
    )


def role_name(role: int) -> str:
    """The word for a role of the contract; a number for one we do not know."""
    return ROLE_NAMES.get(role, f"role {role}")


def _missing(live: list[Card], role: int, model_id: str, num_offering: int) -> str:
    wanted = f"{role_name(role)} {model_id}" if model_id else role_name(role)
    if not live:
        return f"no node is known, so none offers {wanted}"
    if num_offering:
        return f"{num_offering} of {len(live)} nodes offer {wanted}, none can be reached from here"
    served = [m for card in live for m in card.offer.models if m.role == role]
    offered = f"offered: {_names(served)}" if served else f"none offers any {role_name(role)}"
    return f"none of {len(live)} nodes offers a usable {wanted}; {offered}"
