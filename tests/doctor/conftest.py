"""Logs are kept for the test that asks for them, instead of being printed."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def logged():
    """The events logged during the test; traces stay in `exc_info`, unprinted."""
    with capture_logs() as events:
        yield events
