"""`kakeya spec [NAME]`: the tables the code goes by, printed from the code itself."""

from __future__ import annotations

from kakeya.config.settings import env_name, keys
from kakeya.drafting import machine
from kakeya.errors import demand
from kakeya.node import phase


def spec(name: str = "") -> int:
    """Print the machine or table called NAME; without a name, say which there are.

    Parameters
    ----------
    name
        node (the phases a node goes through), session (the states of a DFlash session) or
        config (every key, its variable, its default).
    """
    if not name:
        print("\n".join(TABLES))
        return 0
    demand(name in TABLES, "INVALID_ARGUMENT", f"no table {name!r}; there are {', '.join(TABLES)}")
    print("\n".join(LINES[name]()))
    return 0


def node_lines() -> list[str]:
    return [f"{a.value:9} --{e.value}--> {b.value}" for (a, e), b in phase.TABLE.items()]


def session_lines() -> list[str]:
    return [
        f"{a.__name__:8} --{request.__name__}--> {' | '.join(machine.next_states(a, request))}"
        for a, request in machine.TABLE
    ]


def config_lines() -> list[str]:
    return [f"{key:36} {env_name(key):44} {default!r}" for key, (_, default) in keys().items()]


LINES = {"node": node_lines, "session": session_lines, "config": config_lines}
TABLES = tuple(LINES)
