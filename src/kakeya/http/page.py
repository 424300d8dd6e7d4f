"""The one page for people: a file of this package, and the fields that keep it to itself."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from kakeya.http.messages import Answer

_PAGE = Path(__file__).with_name("page.html")


def page_answer() -> Answer:
    """The page.  It may run its own script only, ask this door only, and stand in no frame."""
    body = _PAGE.read_bytes()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(body, b'script')}",
            # Widths of bars are set by the script, which style-src does not govern.
            f"style-src {_hashes(body, b'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    fields = (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
    )
    return Answer(200, body, "text/html; charset=utf-8", fields)


def _hashes(body: bytes, tag: bytes) -> str:
    """The sources of a policy that allow just the elements `tag` of the page."""
    blocks = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), body, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(block).digest()).decode() for block in blocks]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


__all__ = ["page_answer"]
