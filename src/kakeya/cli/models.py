"""`kakeya models`: which verifiers this host can run by name, and whether they are there."""

from __future__ import annotations

import os

import msgspec

from kakeya.embedded.models import list_models


def models(*, json: bool = False) -> int:
    """List the models known by name."""
    rows = list_models(os.environ)
    if json:
        print(msgspec.json.encode(rows).decode())
        return 0
    for row in rows:
        print(f"{row.name:12} {'ready' if row.is_ready else 'on first use':12} {row.about}")
    return 0
