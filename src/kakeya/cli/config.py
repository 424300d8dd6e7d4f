"""`kakeya config show`: every setting, its value and where it came from."""

from __future__ import annotations

import cyclopts
import msgspec

from kakeya.cli.flags import NodeFlags, load_settings
from kakeya.config.settings import keys

config_app = cyclopts.App(name="config", help="Show the configuration in force.")


@config_app.command
def show(*, flags: NodeFlags | None = None, json: bool = False) -> int:
    """Print every key with its value and origin (flag, environment, file, default)."""
    loaded = load_settings(flags)
    rows = []
    for key in keys():
        value: object = loaded.settings
        for part in key.split("."):
            value = getattr(value, part)
        rows.append({"key": key, "value": value, "origin": loaded.origins[key]})
    if json:
        print(msgspec.json.encode(rows).decode())
        return 0
    for row in rows:
        print(f"{row['key']:36} {_shown(row['value']):28} {row['origin']}")
    return 0


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "-"
    return str(value) if value != "" else "-"
