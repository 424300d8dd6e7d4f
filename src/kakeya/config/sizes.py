"""Sizes as people write them: "8GiB", "500MB", plain bytes.  Pure."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000 ** (i + 1) for i, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (i + 1) for i, letter in enumerate("kmgt")},
}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-zA-Z]{0,3})")


def parse_size(text: str) -> int:
    """Bytes: "500MB" is 500·10⁶, "8GiB" 8·2³⁰, "1.5 GB" 1.5·10⁹, "123" itself.

    Raises ValueError that says how a size is written.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError("a size is a number of bytes, or a number with kB, MB, GB, KiB, MiB, GiB")
    return int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)


def shown_size(num_bytes: int) -> str:
    """Such as "540.1 MB"; exact below a kilobyte."""
    size, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{num_bytes} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
